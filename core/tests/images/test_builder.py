"""Real builds by a real Apptainer."""

# ruff: noqa: ASYNC110, ASYNC240 - /proc and small files do not block, and the kernel tells nobody

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from prorl.api import ConfigError, SandboxFault
from prorl.host import locks
from prorl.sandbox.images import builder as builder_module
from prorl.sandbox.images.builder import BuildEvent, SingularityRuntimeBuilder
from prorl.sandbox.images.recipe import Recipe
from prorl.sandbox.inside import tree

DEFINITION = """Bootstrap: localimage
From: {{ base }}

%post
    echo counted >>{{ counter | default("/dev/null") }}
    {{ post | default("true") }}
    echo {{ what | default("nothing") | quote }} >/opt/what
"""


@pytest.fixture(scope="session")
def base(apptainer, small_rootfs, tmp_path_factory) -> Path:
    """A SIF to build upon, so that builds are as quick as can be."""
    made = tmp_path_factory.mktemp("base") / "base.sif"
    done = subprocess.run([apptainer, "build", made, small_rootfs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def builder(settings, apptainer) -> SingularityRuntimeBuilder:
    return SingularityRuntimeBuilder(settings, apptainer=apptainer)


@pytest.fixture
def recipe(tmp_path, base):
    path = tmp_path / "x.def.j2"
    path.write_text(DEFINITION)

    def make(cache: str = "versioned", *, lock: tuple[str, ...] = (), template: Path = path, **variables) -> Recipe:
        return Recipe(template=str(template), variables={"base": str(base), **variables}, cache=cache, lock=lock)

    return make


def left(settings) -> list[str]:
    """What only a build under way may have."""
    return [path.name for path in Path(settings.folder).glob("*.part")] + [
        path.name for path in Path(settings.tmp).iterdir()
    ]


def below_us() -> list[tree.Process]:
    return tree.descendants(os.getpid())


def content(apptainer: str, image: Path, path: str) -> str:
    argv = [apptainer, "exec", "--containall", "--no-home", image, "cat", path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "fuse" in done.stderr + done.stdout:
        pytest.skip(f"this user cannot run a SIF by apptainer here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_what_is_built_runs(builder, recipe, settings, apptainer) -> None:
    events: list[BuildEvent] = []
    image = await builder.build(recipe(what="it's here"), on_event=events.append)
    assert not image.reused
    assert image.path.parent == Path(settings.folder)
    assert image.path.name.startswith("x-")
    assert [event.kind for event in events if event.kind != "line"] == ["waiting", "started", "built"]
    assert any("Running post scriptlet" in event.text for event in events if event.kind == "line")
    assert [event.elapsed for event in events] == sorted(event.elapsed for event in events)
    assert left(settings) == []
    assert below_us() == []
    assert content(apptainer, image.path, "/opt/what") == "it's here\n"


async def test_compressed_by_zstd(builder, recipe, apptainer) -> None:
    image = await builder.build(recipe())
    at = builder_module.find_squashfs(image.path).offset
    assert image.path.read_bytes()[at + 20 : at + 22] == b"\6\0"  # the superblock's number for zstd


async def test_scratch_always_rebuilds(builder, recipe) -> None:
    one, two = await builder.build(recipe("scratch")), await builder.build(recipe("scratch"))
    assert not one.reused
    assert not two.reused
    assert one.path == two.path
    assert two.built.began > one.built.began


async def test_versioned_stands_while_base_and_framework_do(builder, recipe, base, tmp_path, monkeypatch) -> None:
    one = await builder.build(recipe())
    assert (await builder.build(recipe())).reused
    assert not (await builder.build(recipe(what="another definition"))).reused
    monkeypatch.setattr(builder_module, "framework_version", lambda: "99.0")
    newer = await builder.build(recipe())
    assert not newer.reused
    assert newer.built.framework == "99.0"
    monkeypatch.undo()
    assert (await builder.build(recipe())).path == one.path

    copy = tmp_path / "base.sif"
    copy.write_bytes(base.read_bytes())
    key = builder.plan(recipe(base=str(copy))).entry
    copy.write_bytes(one.path.read_bytes())  # the same name, another image
    assert builder.plan(recipe(base=str(copy))).entry != key


async def test_lock_stands_while_the_lock_file_does(builder, recipe, tmp_path, monkeypatch) -> None:
    lock = tmp_path / "uv.lock"
    lock.write_text("a==1\n")
    locked = recipe("lock", lock=(str(lock),))
    one = await builder.build(locked)
    monkeypatch.setattr(builder_module, "framework_version", lambda: "99.0")
    lock.touch()
    assert (await builder.build(locked)).path == one.path
    lock.write_text("a==2\n")
    two = await builder.build(locked)
    assert not two.reused
    assert two.path != one.path


async def test_lock_needs_a_lock_file(builder, recipe) -> None:
    with pytest.raises(ConfigError, match="needs the path of a lock file"):
        await builder.build(recipe("lock"))
    with pytest.raises(ConfigError, match="cannot read the lock file /no/such: No such file"):
        await builder.build(recipe("lock", lock=("/no/such",)))


async def test_a_base_that_is_not_there(builder, recipe) -> None:
    with pytest.raises(ConfigError, match=r"base image /no/such\.sif is not there"):
        await builder.build(recipe(base="/no/such.sif"))


async def test_a_base_folder_that_changed(builder, recipe, tmp_path) -> None:
    folder = tmp_path / "root"
    (folder / "usr").mkdir(parents=True)
    (folder / "usr/file").write_text("1")
    key = builder.plan(recipe(base=str(folder))).entry
    assert builder.plan(recipe(base=str(folder))).entry == key
    (folder / "usr/file").write_text("12")
    assert builder.plan(recipe(base=str(folder))).entry != key


async def test_the_gui_machine_has_a_key_of_its_own(builder, tmp_path) -> None:
    machine = Recipe(template="qemu-gui", variables={"disk": "/images/a.qcow2"})
    other = Recipe(template="qemu-gui", variables={"disk": "/images/b.qcow2"})
    assert builder.plan(machine).entry.startswith("qemu-gui-")
    assert builder.plan(machine).entry != builder.plan(other).entry


async def test_a_handlers_own_definition(builder, base, tmp_path, apptainer) -> None:
    own = tmp_path / "mytask.def.j2"
    (tmp_path / "task.txt").write_text("the task's own file\n")
    own.write_text(
        "Bootstrap: localimage\nFrom: {{ base }}\n%files\n    task.txt /opt/task.txt\n%runscript\n    true\n"
    )
    image = await builder.build(Recipe(template=str(own), variables={"base": str(base)}))
    assert image.entry.startswith("mytask-")
    assert content(apptainer, image.path, "/opt/task.txt") == "the task's own file\n"


ASKER = """
import asyncio, json, sys
import msgspec
from prorl.sandbox.images.builder import SingularityRuntimeBuilder
from prorl.sandbox.images.recipe import Recipe
from prorl.sandbox.images.settings import ImageSettings

async def main():
    builder = SingularityRuntimeBuilder(msgspec.json.decode(sys.argv[1], type=ImageSettings), apptainer=sys.argv[2])
    recipe = msgspec.json.decode(sys.argv[3], type=Recipe)
    print("asking", flush=True)
    images = await asyncio.gather(*(builder.build(recipe) for _ in range(int(sys.argv[4]))))
    print(json.dumps([[str(image.path), image.reused] for image in images]), flush=True)

asyncio.run(main())
"""


def start_asker(settings, apptainer: str, recipe: Recipe, times: int) -> subprocess.Popen[str]:
    argv = [msgspec.json.encode(settings).decode(), apptainer, msgspec.json.encode(recipe).decode(), str(times)]
    return subprocess.Popen([sys.executable, "-c", ASKER, *argv], stdout=subprocess.PIPE, text=True)


async def test_eight_askers_in_two_processes_are_one_build(settings, apptainer, recipe) -> None:
    askers = [start_asker(settings, apptainer, recipe(post="sleep 0.5"), 4) for _ in range(2)]
    answers = [json.loads(asker.communicate(timeout=100)[0].splitlines()[-1]) for asker in askers]
    images = [image for answer in answers for image in answer]
    assert len(images) == 8
    assert len({path for path, _ in images}) == 1
    assert [reused for _, reused in images].count(False) == 1


async def test_scratch_askers_share_what_began_after_they_asked(builder, recipe) -> None:
    images = await asyncio.gather(*(builder.build(recipe("scratch", post="sleep 0.3")) for _ in range(6)))
    assert [image.reused for image in images].count(False) <= 2


async def wait_until_building(settings) -> None:
    async with asyncio.timeout(60):
        while not list(Path(settings.folder).glob("*.log")) or not any(
            b"Running post" in path.read_bytes() for path in Path(settings.folder).glob("*.log")
        ):
            await asyncio.sleep(0.02)


async def test_a_server_killed_in_the_middle_of_a_build_leaves_no_half_image(
    settings, builder, apptainer, recipe, command_lines
) -> None:
    slow = recipe(post="sleep 300")
    asker = start_asker(settings, apptainer, slow, 1)
    try:
        await wait_until_building(settings)
    finally:
        asker.send_signal(signal.SIGKILL)
        asker.communicate(timeout=60)
    assert builder.cache.list() == ()
    # The guard ends the build and gives the lock back: only then does the next one begin.
    with pytest.raises(SandboxFault) as caught:
        await builder.build(slow, timeout=1)
    assert caught.value.code == "image_timeout"
    assert left(settings) == []
    assert not any(b"sleep\x00300" in line for line in command_lines())


async def test_leftovers_of_a_dead_machine_go_with_the_next_build(settings, builder, recipe) -> None:
    entry = builder.plan(recipe()).entry
    builder.cache.make()
    (Path(settings.folder) / f"{entry}.0123abcd.part").write_bytes(b"half an image")
    unpacked = Path(settings.tmp) / f"prorl-build-{entry}-1"
    (unpacked / "rootfs").mkdir(parents=True)
    (unpacked / "rootfs").chmod(0o500)
    assert not (await builder.build(recipe())).reused
    assert left(settings) == []


async def test_a_build_that_fails_says_why_and_leaves_its_log(settings, builder, recipe) -> None:
    failing = recipe(post="echo what went wrong >&2; exit 3")
    events: list[BuildEvent] = []
    with pytest.raises(SandboxFault, match="what went wrong") as caught:
        await builder.build(failing, on_event=events.append)
    assert caught.value.code == "image_build"
    assert events[-1].kind == "failed"
    log = builder.cache.log(builder.plan(failing).entry)
    assert str(log) in str(caught.value)
    assert "what went wrong" in log.read_text()
    assert builder.cache.list() == ()
    assert left(settings) == []


async def test_a_build_that_takes_too_long_is_ended_as_a_whole(settings, builder, recipe, command_lines) -> None:
    began = time.monotonic()
    with pytest.raises(SandboxFault, match="more than 1 s") as caught:
        await builder.build(recipe(post="setsid sleep 301 & sleep 302"), timeout=1)
    assert caught.value.code == "image_timeout"
    assert time.monotonic() - began < 60
    assert not any(b"sleep\x00301" in line or b"sleep\x00302" in line for line in command_lines())
    assert below_us() == []
    assert left(settings) == []


async def test_a_cancelled_build_is_ended_before_the_cancellation_goes_on(
    settings, builder, recipe, command_lines
) -> None:
    building = asyncio.create_task(builder.build(recipe(post="sleep 303")))
    await wait_until_building(settings)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert not any(b"sleep\x00303" in line for line in command_lines())
    assert below_us() == []
    assert left(settings) == []
    assert builder.cache.list() == ()


async def test_the_servers_environment_stays_out(builder, base, tmp_path, apptainer, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    template = tmp_path / "x.def.j2"
    template.write_text("Bootstrap: localimage\nFrom: {{ base }}\n%post\n    env >/opt/env\n")
    image = await builder.build(Recipe(template=str(template), variables={"base": str(base)}))
    assert "hush" not in content(apptainer, image.path, "/opt/env")


async def test_no_apptainer(settings, recipe) -> None:
    for name in ("/no/such/apptainer", "/etc/passwd"):
        with pytest.raises(SandboxFault, match=name) as caught:
            await SingularityRuntimeBuilder(settings, apptainer=name).build(recipe())
        assert caught.value.code == "missing"


async def test_a_registry_out_of_reach(builder) -> None:
    with pytest.raises(SandboxFault, match=r"name the \.sif as the image") as caught:
        await builder.build("docker://127.0.0.1:9/nonesuch:1", timeout=100)
    assert caught.value.code == "image_unreachable"


@pytest.mark.parametrize("reference", ["docker://", "docker://a b", "docker://a'"])
async def test_no_docker_reference(builder, reference: str) -> None:
    with pytest.raises(ConfigError, match="not a docker reference"):
        await builder.build(reference)


async def test_a_cache_that_cannot_be_written(apptainer, recipe, tmp_path, settings) -> None:
    (tmp_path / "file").write_text("")
    where = msgspec.structs.replace(settings, folder=str(tmp_path / "file"))
    with pytest.raises(SandboxFault, match=r"set \[sandbox\.images\] folder") as caught:
        await SingularityRuntimeBuilder(where, apptainer=apptainer).build(recipe())
    assert caught.value.code == "image_cache"


async def test_a_build_prunes_to_the_settings_but_nothing_in_use(settings, apptainer, recipe) -> None:
    small = SingularityRuntimeBuilder(msgspec.structs.replace(settings, max_gb=1e-9), apptainer=apptainer)
    one = await small.build(recipe())
    held = await locks.shared(one.path)
    assert held is not None
    two = await small.build(recipe(what="two"))
    three = await small.build(recipe(what="three"))
    assert {Path(stored.path) for stored in small.cache.list()} == {one.path, three.path}
    assert not two.path.exists()
    os.close(held)
