"""A rollout server from the trainer's side. Needs only httpx and msgspec: no server code comes along."""

from prorl.client.blocking import BlockingClient
from prorl.client.client import DEFAULT_URL, RolloutClient
from prorl.client.errors import BadAddress, ClientError, NotARolloutServer, ServerUnreachable, ServiceError

__all__ = [
    "DEFAULT_URL",
    "BadAddress",
    "BlockingClient",
    "ClientError",
    "NotARolloutServer",
    "RolloutClient",
    "ServerUnreachable",
    "ServiceError",
]
