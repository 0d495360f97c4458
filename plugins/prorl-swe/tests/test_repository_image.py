"""A base made of an image: its repository at the base commit, with what was built there, and nothing later."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from prorl.api import SandboxSpec, TaskFault
from prorl.sandbox.apptainer import Apptainer
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.images.program import find_apptainer
from prorl.sandbox.images.settings import ImageSettings
from prorl.sandbox.settings import SandboxSettings
from prorl_swe.repository.cache import RepositoryCache
from prorl_swe.repository.prepared import PRISTINE_GIT
from prorl_swe.rows import ImageSource, Instance

OF_THE_CORE = Path(__file__).parents[3] / "core" / "tests" / "images" / "conftest.py"
SECRET = "the fix that nobody must see"


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory) -> tuple[Path, str]:
    """``(a root file system, base commit)`` with a repository at /testbed that has a later commit, an ignored file that
    was built, and a change that the image's makers made."""
    if not OF_THE_CORE.is_file():
        pytest.skip("the core's tests, which make root file systems, are not beside this package")
    spec = importlib.util.spec_from_file_location("of_the_core", OF_THE_CORE)
    of_the_core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(of_the_core)
    root = tmp_path_factory.mktemp("image") / "rootfs"
    of_the_core.make_rootfs(root, python=True)
    of_the_core.copy_program(Path(shutil.which("git")), root / "usr/bin/git", root)
    repository = root / "testbed"
    repository.mkdir()
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": "/nowhere"}

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=repository, env=env, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q", "-b", "main")
    (repository / ".gitignore").write_text("*.so\n")
    (repository / "code.py").write_text("value = 1\n")
    (repository / "setup.cfg").write_text("[metadata]\n")
    git("add", ".")
    git("commit", "-q", "-m", "base")
    base = git("rev-parse", "HEAD")
    (repository / "code.py").write_text(f"# {SECRET}\n")
    git("commit", "-q", "-a", "-m", SECRET)
    git("tag", "later")
    git("reset", "-q", "--hard", base)
    (repository / "built.so").write_text("built\n")
    (repository / "setup.cfg").write_text("[metadata]\nname = mended\n")
    (repository / ".git" / "hooks").mkdir(exist_ok=True)
    (repository / "absolute").symlink_to("/usr/bin/python3")
    for folder in (root, *root.parents):
        if folder.is_relative_to(tmp_path_factory.getbasetemp()):
            folder.chmod(0o755)
    return root, base


@pytest.fixture(scope="module")
def sif(rootfs, tmp_path_factory) -> Path:
    program = find_apptainer()
    if program is None:
        pytest.skip("no apptainer: set PRORL_APPTAINER or put one on PATH")
    folder = tmp_path_factory.mktemp("sif")
    definition = folder / "image.def"
    definition.write_text(f"Bootstrap: localimage\nFrom: {rootfs[0]}\n\n%environment\n    export FROM_IMAGE=yes\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "APPTAINER_TMPDIR": str(folder)}
    done = subprocess.run(
        [program, "build", str(folder / "image.sif"), str(definition)],
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    folder.chmod(0o755)
    return folder / "image.sif"


def instance(reference: Path, base: str, **more: str) -> Instance:
    return Instance(
        kind="swe-bench",
        instance_id="image",
        repo="somebody/pkg",
        version="1.2",
        base_commit=base,
        problem_statement="",
        source=ImageSource(reference=str(reference), activate="export ACTIVATED=yes", **more),
        fail_to_pass=("t",),
        pass_to_pass=(),
    )


@pytest.fixture(params=["bubblewrap", "apptainer"])
async def runtime(request, tmp_path):
    images = ImageSettings(folder=str(tmp_path / "images"), tmp=str(tmp_path))
    settings = SandboxSettings(state=str(tmp_path / "state"), images=images)
    made = Bubblewrap(settings) if request.param == "bubblewrap" else Apptainer(settings)
    probe = await made.probe()
    if not probe.works:
        pytest.skip(f"{made.name}: {probe.reason}")
    return made


@pytest.fixture
async def cache(tmp_path):
    made = RepositoryCache(tmp_path / "cache")
    yield made
    await made.close()


async def test_the_repository_of_an_image(rootfs, sif, runtime, cache) -> None:
    _, base = rootfs
    with await cache.prepare(instance(sif, base), SandboxSpec(), start=runtime.start) as lease:
        prepared = lease.prepared
        assert prepared.activate == "export ACTIVATED=yes"
        assert prepared.python == "/usr/bin/python3"
        sandbox = await runtime.start(prepared.spec)
        try:

            async def bash(command: str) -> str:
                result = await sandbox.act("bash", {"command": command}, timeout=60)
                assert (result.outcome, result.data["exit_code"]) == ("ok", 0), result
                return result.output

            assert await bash("pwd; cat built.so; cat code.py; readlink absolute; tail -n 1 setup.cfg") == (
                "/testbed\nbuilt\nvalue = 1\n/usr/bin/python3\nname = mended\n"
            )
            assert (await bash("git rev-parse HEAD")).strip() == prepared.base
            assert (await bash("git rev-parse HEAD^")).strip() == base
            assert (await bash("git log --all --format=%s")).split() == ["Base", "base"]
            assert await bash("git tag; git reflog; git status --porcelain; git fsck --no-progress --unreachable") == ""
            objects = "git cat-file --batch-all-objects --batch-check | cut -d' ' -f1"
            contents = await bash(f"for name in $({objects}); do git cat-file -p $name; done | cat -v")
            assert "value = 1" in contents
            assert SECRET not in contents
            assert await bash(
                "echo mine >>code.py; rm built.so; git commit -q -a -m mine && git log --format=%s -1"
            ) == ("mine\n")
            assert (await bash(f"git --git-dir={PRISTINE_GIT} rev-parse HEAD")).strip() == prepared.base
            assert "mine" not in await bash(f"git --git-dir={PRISTINE_GIT} log --all")
        finally:
            await sandbox.stop(grace=0)
        again = await runtime.start(prepared.spec)
        try:
            result = await again.act("bash", {"command": "cat code.py built.so"}, timeout=60)
            assert result.output == "value = 1\nbuilt\n"
        finally:
            await again.stop(grace=0)


@pytest.mark.parametrize(("path", "code"), [("/opt", "repository"), ("/no/such", "image_repository")])
async def test_an_image_without_the_repository(rootfs, cache, path: str, code: str) -> None:
    root, base = rootfs
    runtime = Bubblewrap()
    if not (await runtime.probe()).works:
        pytest.skip("no bubblewrap")
    with pytest.raises(TaskFault) as caught:
        await cache.prepare(instance(root, base, path=path), SandboxSpec(), start=runtime.start)
    assert caught.value.code == code


async def test_a_commit_that_the_image_does_not_have(rootfs, cache) -> None:
    root, _ = rootfs
    runtime = Bubblewrap()
    if not (await runtime.probe()).works:
        pytest.skip("no bubblewrap")
    with pytest.raises(TaskFault, match="no commit"):
        await cache.prepare(instance(root, "f" * 40), SandboxSpec(), start=runtime.start)
    assert cache.store.list() == ()
