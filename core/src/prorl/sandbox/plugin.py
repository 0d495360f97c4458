"""The built-in runtimes, registered like anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from prorl.api import RuntimeRecord, hookimpl
from prorl.sandbox.settings import SandboxSettings


def runtimes(settings: SandboxSettings) -> list[RuntimeRecord]:
    """The records of this package, with settings bound into their factories."""
    from prorl.sandbox.apptainer import Apptainer  # noqa: PLC0415
    from prorl.sandbox.bubblewrap import Bubblewrap  # noqa: PLC0415
    from prorl.sandbox.local import Local  # noqa: PLC0415

    return [
        RuntimeRecord(
            name=Bubblewrap.name,
            factory=partial(Bubblewrap, settings),
            summary="rootless namespaces by bwrap: no network, own processes, the host's /usr read-only",
            preference=10,
        ),
        RuntimeRecord(
            name=Apptainer.name,
            factory=partial(Apptainer, settings),
            summary="rootless containers by Apptainer or Singularity: SIF and docker images, fakeroot; for clusters",
        ),
        RuntimeRecord(
            name=Local.name,
            factory=partial(Local, settings),
            summary="an ordinary process in a private folder: no isolation, only by name",
            preference=-1,
        ),
    ]


def with_settings(records: Mapping[str, RuntimeRecord], settings: SandboxSettings) -> dict[str, RuntimeRecord]:
    """A registry's runtimes, those of this package with ``[sandbox]`` in their hands."""
    ours = {record.name: record for record in runtimes(settings)}
    return {name: ours.get(name, record) for name, record in records.items()}


@hookimpl
def prorl_sandbox_runtimes() -> list[RuntimeRecord]:
    return runtimes(SandboxSettings())
