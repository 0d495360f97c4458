"""References to images: what each means, what is built for it, and what cannot be one."""

from __future__ import annotations

import shutil

import pytest

from prorl.api import SandboxFault, SandboxSpec
from prorl.sandbox.images.recipe import Recipe
from prorl.sandbox.images.resolve import Images


@pytest.mark.parametrize(
    ("reference", "message", "code"),
    [
        ("relative/path", "is no image: write an absolute path", "image_reference"),
        ("library://x", "is no image", "image_reference"),
        ("/no/such.sif", "is not there", "image_missing"),
        ("/", "host's own root is not an image", "image_reference"),
        ("/etc", "neither usr nor bin", "image_reference"),
        ("/etc/passwd", "no SIF|too short", "bad_image"),
        ("def:nonesuch", "no definition template", "image_reference"),
        ("/a\0b", "is no image", "image_reference"),
    ],
)
async def test_a_reference_that_cannot_work_is_that_jobs_fault(
    settings, reference: str, message: str, code: str
) -> None:
    with pytest.raises(SandboxFault, match=message) as caught:
        await Images(settings).resolve(reference)
    assert caught.value.code == code


async def test_the_same_answer_in_one_place(settings, sif, rootfs) -> None:
    images = Images(settings)
    assert (await images.resolve(None)).kind == "host"
    assert (await images.resolve(str(rootfs))).kind == "folder"
    one = await images.resolve(str(sif))
    assert (one.kind, one.path) == ("sif", str(sif))
    copy = sif.with_name("copy.sif")
    shutil.copy(sif, copy)
    assert (await images.resolve(str(copy))).digest == one.digest


async def test_prepare_builds_so_that_start_need_not(make_bubblewrap, apptainer, rootfs, tmp_path) -> None:
    template = tmp_path / "x.def.j2"
    template.write_text("Bootstrap: localimage\nFrom: {{ base }}\n")
    reference = Recipe(template=str(template), variables={"base": str(rootfs)}).reference
    runtime = make_bubblewrap()
    await runtime.prepare(reference)
    built = runtime._images.builder.cache.list()
    assert len(built) == 1
    sandbox = await runtime.start(SandboxSpec(image=reference))
    await sandbox.stop()
    assert [stored.built for stored in runtime._images.builder.cache.list() if stored.built] == [built[0].built]


async def test_one_in_use_is_not_pruned(make_bubblewrap, apptainer, rootfs, tmp_path, say) -> None:
    template = tmp_path / "x.def.j2"
    template.write_text("Bootstrap: localimage\nFrom: {{ base }}\n%post\n    echo built >/opt/built\n")
    recipe = Recipe(template=str(template), variables={"base": str(rootfs)})
    runtime = make_bubblewrap()
    cache = runtime._images.builder.cache
    sandbox = await runtime.start(SandboxSpec(image=recipe.reference))
    assert await say(sandbox, "cat /opt/built") == (0, "built\n")
    in_use = [stored.name for stored in cache.list() if stored.in_use]
    assert in_use
    assert not {stored.name for stored in cache.prune(max_bytes=0)} & set(in_use)
    assert await say(sandbox, "echo /opt/*") == (0, "/opt/built /opt/from-image\n")
    await sandbox.stop()
    assert [stored.in_use for stored in cache.list()] == [False] * len(in_use)
    cache.prune(max_bytes=0)
    assert cache.list() == ()
