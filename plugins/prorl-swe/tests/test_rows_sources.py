"""Where a row's repository is: what the row may name, and what the owner of the server has to allow."""

from typing import Any

import msgspec
import pytest
from published import BENCH, COMMIT, PYPI, REFERENCES

from prorl.api import ConfigError, TaskFault
from prorl_swe.rows import CloneSource, ImageSource, SdistSource, check_images, read_row
from prorl_swe.settings import SweTable


def test_a_row_may_name_its_source():
    clone = read_row({**BENCH, "source": {"type": "clone", "location": "/repos/astropy"}, "requirements": ["numpy<2"]})
    assert clone.source == CloneSource(location="/repos/astropy", commit=COMMIT, requirements=("numpy<2",))
    image = read_row({**BENCH, "source": {"type": "image", "reference": "/images/a.sif", "path": "/repo"}})
    assert image.source == ImageSource(reference="/images/a.sif", path="/repo")
    assert read_row({**BENCH, "test_command": "python -m pytest -q"}).test_command == "python -m pytest -q"
    sdist = read_row({**PYPI, "requirements": ["pytest"]}).source
    assert sdist == SdistSource(
        project="pyflakes",
        version="3.0.0",
        filename="pyflakes-3.0.0.tar.gz",
        sha256="0" * 64,
        requirements=("pytest",),
    )


CLONE: dict[str, Any] = {**BENCH, "source": {"type": "clone", "location": "/repos/astropy"}}


def named(**source: str) -> dict[str, Any]:
    return {**BENCH, "source": source}


@pytest.fixture
def places(tmp_path):
    """``repos`` is allowed and ``private`` is not; each leads to the other by a link."""
    for folder, other in (("repos", "private"), ("private", "repos")):
        (tmp_path / folder / "git").mkdir(parents=True)
        (tmp_path / folder / "link").symlink_to(tmp_path / other / "git")
    return tmp_path


def test_a_path_below_an_allowed_folder_is_used_with_its_links_followed(places):
    sources = [str(places / "repos"), "docker://ghcr.io/me/"]
    inside = str(places / "repos" / "git")
    for location in (inside, str(places / "private" / "link"), str(places / "repos" / "x" / ".." / "git")):
        assert read_row(named(type="clone", location=location), sources=sources).source.location == inside
    assert read_row(named(type="image", reference=inside), sources=sources).source.reference == inside
    image = "docker://ghcr.io/me/astropy:1"
    assert read_row(named(type="image", reference=image), sources=sources).source.reference == image
    linked = [str(places / "private" / "link")]
    assert read_row(named(type="clone", location=inside), sources=linked).source.location == inside


@pytest.mark.parametrize(
    "path", ["private/git", "private/nothing", "repos/link", "repos/../private/git", "repository", "repos-of-mine/git"]
)
def test_a_path_elsewhere_is_refused_whether_or_not_there_is_anything(places, path):
    (places / "repos-of-mine" / "git").mkdir(parents=True)
    for row in (named(type="clone", location=f"{places}/{path}"), named(type="image", reference=f"{places}/{path}")):
        for wrapped in (row, {"instance": BENCH, "source": row["source"]}):
            with pytest.raises(TaskFault) as caught:
                read_row(wrapped, sources=[str(places / "repos")])
            assert caught.value.code == "source_refused"
            said = str(caught.value).replace(f"{places}/{path}", "PATH").replace(str(places), "")
            assert said == (
                "source: this server opens no 'PATH' for a row, only what is in /repos: "
                "put it there, or have the server's owner add its folder to [swe] sources"
            )


@pytest.mark.parametrize(
    "reference",
    [
        "docker://ghcr.io/me/../you/x",
        "docker://ghcr.io/me-too/x",
        "docker://ghcr.io/me",
        "docker://docker.io/x",
        "def:/repos/x.def.j2",
        "repos/x",
        "/",
    ],
)
def test_an_image_that_is_not_of_an_allowed_owner_is_refused(reference):
    with pytest.raises(TaskFault, match="opens no"):
        read_row(named(type="image", reference=reference), sources=["/repos", "docker://ghcr.io/me"])


def test_what_no_row_names_is_no_rows_word(places):
    """The images of rows are where the setting says, and source distributions come from the owner's own index."""
    assert read_row(BENCH, images="/images/{file}.sif", sources=[]).source.reference.startswith("/images/")
    sdist = {"type": "sdist", "project": "a", "version": "1", "filename": "a-1.tar.gz", "sha256": "0" * 64}
    assert read_row({**BENCH, "source": sdist}, sources=[]).source.project == "a"
    with pytest.raises(TaskFault, match="no place at all"):
        read_row(CLONE, sources=[])


@pytest.mark.parametrize("place", ["repos", "", "docker://", "docker:///", "https://host.example/x"])
def test_a_source_that_cannot_work_stops_the_start(place):
    with pytest.raises(msgspec.ValidationError, match="neither the absolute path of a folder nor docker://"):
        msgspec.convert({"sources": [place]}, SweTable)


@pytest.mark.parametrize(
    ("images", "reference"),
    [
        ("docker://mirror.example:5000/{image}", "docker://mirror.example:5000/" + REFERENCES["swe-bench"][9:]),
        ({"swe-bench": "/images/{instance_id}.sif"}, "/images/astropy__astropy-12907.sif"),
        ({"swe-gym": "/images/{instance_id}.sif"}, REFERENCES["swe-bench"]),
        ("/images/{file}.sif", "/images/swebench_sweb.eval.x86_64.astropy_1776_astropy-12907_latest.sif"),
        ("docker://me/{id_1776}:v1", "docker://me/astropy_1776_astropy-12907:v1"),
        ("docker://me/{id_s}:v1", "docker://me/astropy_s_astropy-12907:v1"),
    ],
)
def test_images_go_where_the_template_says(images, reference):
    check_images(images)
    assert read_row(BENCH, images=images).source.reference == reference


@pytest.mark.parametrize("images", ["docker://{name}", "", {"swe": "docker://{image}"}, {"swe-gym": "{}"}])
def test_a_template_that_cannot_work_is_refused(images):
    with pytest.raises(ConfigError):
        check_images(images)
