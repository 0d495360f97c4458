"""verl's trainer on a machine without an accelerator: loaded by ``VERL_USE_EXTERNAL_MODULES=verl_on_cpu``.

Three things are supplied that verl lets others supply: a platform (``cpu``), a rollout replica (``hf``) that launches
:class:`hf_engine.HfEngine`, and the adapter by which the trainer hands it weights. Ray is told of one GPU that nobody
uses.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType
from typing import Any

import ray
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry


class _CpuModule(ModuleType):
    """``torch.cpu``, and for what only accelerators have: a function that does nothing and counts zero."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name in ("get_rng_state", "set_rng_state"):
            return getattr(torch, name)
        if name == "mem_get_info":
            return lambda *_: (1 << 34, 1 << 34)
        if name == "get_device_name":
            return lambda *_: "CPU"
        return lambda *_, **__: 0


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "none"
    device_module = _CpuModule("torch.cpu")

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


_init_process_group = torch.distributed.init_process_group


def _init_once_per_device(backend: str | None = None, *given: Any, **named: Any) -> Any:
    """verl asks for ``cpu:gloo`` and ``{device}:{backend}``, which here are the same."""
    if backend is not None:
        backend = ",".join(dict.fromkeys(backend.split(",")))
    return _init_process_group(backend, *given, **named)


torch.distributed.init_process_group = _init_once_per_device


def _name(replica_rank: int) -> str:
    return f"hf_engine_{replica_rank}"


class HfReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        from hf_engine import HfEngine  # noqa: PLC0415 - it imports verl, which imports this module first

        engine = ray.remote(HfEngine).options(
            name=_name(self.replica_rank), max_concurrency=self.max_concurrency, num_cpus=0
        )
        server = engine.remote(self.model_config.path)
        self.servers.append(server)
        self._server_handle, self._server_address = server, _name(self.replica_rank)


class HfAdapter(BaseRollout):
    """In the trainer's process: hands the engine its weights."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self._rank = max(0, replica_rank)

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None, **_: Any
    ) -> None:
        assert wire_format == "named_tensors"
        tensors = {}
        if hasattr(weights, "__aiter__"):
            async for name, tensor in weights:
                tensors[name] = tensor.detach().cpu().float().clone()
        else:
            tensors = {name: tensor.detach().cpu().float().clone() for name, tensor in weights}
        await ray.get_actor(_name(self._rank)).load.remote(tensors, global_steps)


RolloutReplicaRegistry.register("hf", lambda: HfReplica)
rollout_base._ROLLOUT_REGISTRY["hf", "async"] = "verl_on_cpu.HfAdapter"
