"""A source distribution as a repository of one commit, the same id wherever it is made."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prorl.api.errors import TaskFault
from prorl_swe.repository import base, project
from prorl_swe.repository.git import Git, GitError
from prorl_swe.repository.index import download
from prorl_swe.repository.pipsettings import PipSettings
from prorl_swe.repository.unpack import unpack
from prorl_swe.rows.instance import SdistSource


async def make(source: SdistSource, base_patch: str, part: Path, lock: int) -> str:
    """See :data:`prorl_swe.repository.store.Make`."""
    archive, tree = part / "archive", part / base.TREE
    await download(source, archive, PipSettings.read())
    await asyncio.to_thread(unpack, archive, source.filename, tree)
    archive.unlink()
    git = Git(tree, lock)
    try:
        await base.init(git)
        if base_patch:
            await base.apply_patch(git, tree, base_patch)
        await base.commit_all(git, tree, f"{source.project} {source.version}")
        found = await asyncio.to_thread(project.install, tree, part / base.PROJECT, source.project, source.version)
        commit = await base.seal(git, tree)
    except GitError as error:
        raise TaskFault(f"{source.filename} cannot be made a repository: {error}", code="repository") from error
    base.write(part, base.Base(commit=commit, requirements=found.required, optional=found.optional))
    return f"{source.project} {source.version}"
