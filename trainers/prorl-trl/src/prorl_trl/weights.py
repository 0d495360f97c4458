"""The trainer's weights into vLLM servers, by way of a folder (:class:`prorl.client.FolderReload`).

:class:`FolderPublisher` is the ``publish`` of a :class:`~prorl_trl.RolloutServiceFunc`; :class:`FolderWeights` the
``weight_transfer`` of an ``AsyncGRPOTrainer``. Under TRL's own transfer (NCCL) neither is needed, but the rollout
servers then have to be told the versions by you.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from prorl.client import FolderReload


@dataclass(eq=False)
class FolderPublisher:
    """Called on every rank; the main one writes and tells the engines, the others wait."""

    reload: FolderReload
    folder: Path

    def __call__(self, trainer: Any, policy_version: str) -> None:
        accelerator = trainer.accelerator
        state = accelerator.get_state_dict(trainer.model)  # gathers what is sharded: every rank takes part
        if accelerator.is_main_process:
            accelerator.unwrap_model(trainer.model).save_pretrained(self.folder, state_dict=state)
            self.reload.publish(self.folder, policy_version)
        accelerator.wait_for_everyone()


@dataclass(eq=False)
class FolderWeights:
    """TRL's ``WeightTransferProtocol``. ``model`` is the folder the policy was loaded from: its configuration goes with
    the weights. Versions are counted as TRL counts them, ``"1"`` for the first transfer."""

    reload: FolderReload
    folder: Path
    _: KW_ONLY
    model: Path
    version: int = field(default=0, init=False)

    def init_weight_transfer(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.model.glob("*.json"):
            if not file.name.endswith(".index.json"):  # there is one file of weights, whatever there was
                shutil.copy(file, self.folder)

    def pause(self) -> None:
        self.reload.hold()

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        from safetensors.torch import save_file  # noqa: PLC0415 - the trainer's

        tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in iterator}
        written = self.folder / ".model.safetensors"
        save_file(tensors, written, metadata={"format": "pt"})
        written.replace(self.folder / "model.safetensors")
        self.reload.load(self.folder)

    def resume(self) -> None:
        self.version += 1
        self.reload.release(str(self.version))

    def destroy(self) -> None:
        self.reload.close()
