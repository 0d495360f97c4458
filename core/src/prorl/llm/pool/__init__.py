"""All LLM servers that trainers registered, and which task uses which. See :mod:`prorl.llm.pool.pool`."""

from prorl.llm.pool.lease import Lease, Sampled
from prorl.llm.pool.pool import BackendPool
from prorl.llm.pool.settings import PoolSettings

__all__ = ["BackendPool", "Lease", "PoolSettings", "Sampled"]
