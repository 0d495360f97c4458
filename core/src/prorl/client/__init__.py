"""A rollout server from the trainer's side. Needs only httpx and msgspec: no server code comes along."""

from prorl.client.blocking import BlockingClient
from prorl.client.client import DEFAULT_URL, RolloutClient
from prorl.client.collector import GroupCollector
from prorl.client.errors import BadAddress, ClientError, NotARolloutServer, ServerUnreachable, ServiceError
from prorl.client.fleet import Fleet, FleetMember, FleetSettings
from prorl.client.groups import Attempt, Group, Prompt, rewards_differ
from prorl.client.roster import Batch, CollectorSettings, Stalled
from prorl.client.samples import Padded, Sample, SampleRules, Untrainable, pad, samples_of, stand_in
from prorl.client.tries import Tried, try_for_samples
from prorl.client.weights import FolderReload, WeightsRefused

__all__ = [
    "DEFAULT_URL",
    "Attempt",
    "BadAddress",
    "Batch",
    "BlockingClient",
    "ClientError",
    "CollectorSettings",
    "Fleet",
    "FleetMember",
    "FleetSettings",
    "FolderReload",
    "Group",
    "GroupCollector",
    "NotARolloutServer",
    "Padded",
    "Prompt",
    "RolloutClient",
    "Sample",
    "SampleRules",
    "ServerUnreachable",
    "ServiceError",
    "Stalled",
    "Tried",
    "Untrainable",
    "WeightsRefused",
    "pad",
    "rewards_differ",
    "samples_of",
    "stand_in",
    "try_for_samples",
]
