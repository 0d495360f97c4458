"""A base made of a source distribution: from an index of one's own, pinned, unpacked without harm, always the same."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from prorl.api import SandboxFault, SandboxSpec, TaskFault
from prorl_swe.repository import index
from prorl_swe.repository.cache import RepositoryCache
from prorl_swe.repository.pipsettings import PipSettings
from prorl_swe.repository.requirements import find
from prorl_swe.rows import Instance, SdistSource

PYPROJECT = """
[project]
name = "Some.Project"
dependencies = ["attrs>=20"]
[project.optional-dependencies]
crypto = ["cryptography"]
tests = ["pytest<7", "some-project[crypto]", "coverage==5.0.4"]
docs = ["sphinx"]
[dependency-groups]
dev = ["hypothesis", {include-group = "lint"}]
lint = ["ruff"]
"""


def archive(files: dict[str, str | None], *, links: dict[str, str] | None = None) -> bytes:
    """A gzipped tar; ``None`` is a device."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            if text is None:
                member.type = tarfile.CHRTYPE
            member.size = len(text or "")
            member.mode = 0o6777
            tar.addfile(member, io.BytesIO((text or "").encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return buffer.getvalue()


GOOD = {
    "p-1/PKG-INFO": "Metadata-Version: 2.1\nName: Some.Project\nVersion: 1.5\n\nLong.\n",
    "p-1/pyproject.toml": PYPROJECT,
    "p-1/src/some/__init__.py": "value = 1\n",
    "p-1/.git/config": "[core]\n\tfsmonitor = touch ran\n",
    "p-1/setup.py": "open('ran', 'w')\n",
    "p-1/device": None,
}


class Index:
    """A package index over HTTP, and what it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.as_json = True
        self.failures = 0
        self.url = ""


@pytest.fixture
def served(monkeypatch, tmp_path) -> Iterator[Index]:
    state = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            if state.failures:
                state.failures -= 1
                self.send_error(503)
                return
            name = self.path.rpartition("/")[2]
            if self.path == "/simple/some-project/":
                files = [{"filename": file, "url": f"../../files/{file}", "hashes": {}} for file in state.files]
                page = "".join(f'<a href="{file["url"]}#sha256=0">{file["filename"]}</a>' for file in files)
                content = json.dumps({"files": files}).encode() if state.as_json else page.encode()
                kind = "application/vnd.pypi.simple.v1+json" if state.as_json else "text/html"
            elif name in state.files:
                content, kind = state.files[name], "application/octet-stream"
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", state.url)
    monkeypatch.setattr(index, "PAUSE", 0.0)
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def cache(tmp_path, monkeypatch):
    async def nothing(wanted, part: Path, lock: int) -> str:
        (part / "venv").mkdir()
        return "nothing"

    monkeypatch.setattr("prorl_swe.repository.environment.make", nothing)
    made = RepositoryCache(tmp_path / "cache")
    yield made
    await made.close()


def instance(content: bytes, **more: str) -> Instance:
    source = {"filename": "p-1.tar.gz", "sha256": hashlib.sha256(content).hexdigest()} | more
    return Instance(
        kind="pypi",
        instance_id="sdist",
        repo="pypi/some-project",
        version="1",
        base_commit="some-project==1",
        problem_statement="",
        source=SdistSource(project="Some.Project", version="1", **source),
        fail_to_pass=("t",),
        pass_to_pass=(),
    )


async def made(cache: RepositoryCache, wanted: Instance) -> tuple[Path, str]:
    with await cache.prepare(wanted, SandboxSpec()) as lease:
        tree = next(bind.source for bind in lease.prepared.spec.binds if bind.own)
        return Path(tree), lease.prepared.base


@pytest.mark.parametrize("as_json", [True, False])
async def test_from_the_index(served, cache, tmp_path, as_json: bool) -> None:
    content = archive(GOOD)
    served.files, served.as_json, served.failures = {"p-1.tar.gz": content}, as_json, 1
    tree, base = await made(cache, instance(content))
    tracked = await asyncio.to_thread(subprocess.check_output, ["git", "ls-files"], cwd=tree, text=True)
    assert tracked.split() == ["PKG-INFO", "pyproject.toml", "setup.py", "src/some/__init__.py"]
    assert (tree / "setup.py").stat().st_mode & 0o7777 == 0o755
    metadata = tree.parent / "project" / "some_project-1.5.dist-info" / "METADATA"
    assert metadata.read_text() == GOOD["p-1/PKG-INFO"]
    assert (tree.parent / "project" / "project.pth").read_text() == "/testbed/src\n"
    assert not (tree / "ran").exists()
    again = RepositoryCache(tmp_path / "other machine")
    assert (await made(again, instance(content)))[1] == base, "the same id everywhere"


async def test_from_a_folder(cache, monkeypatch, tmp_path) -> None:
    content = archive(GOOD)
    (tmp_path / "p-1.tar.gz").write_bytes(content)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert (await made(cache, instance(content)))[0].is_dir()


@pytest.mark.parametrize(
    ("files", "links", "code"),
    [
        ({"p-1/a": "x"}, {"p-1/out": "/etc"}, "sdist_unpack"),
        ({"p-1/a": "x", "p-1/../../evil": "x"}, {}, "sdist_unpack"),
        ({"a": "x", "b": "x"}, {}, "sdist_unpack"),
        ({"a": "x"}, {}, "sdist_unpack"),
    ],
    ids=["link outside", "path outside", "two at the top", "a file at the top"],
)
async def test_bad_archives(served, cache, files, links, code: str) -> None:
    content = archive(files, links=links)
    served.files = {"p-1.tar.gz": content}
    with pytest.raises(TaskFault) as caught:
        await made(cache, instance(content))
    assert caught.value.code == code
    assert cache.store.list() == ()


async def test_a_cache_whose_folder_is_named_from_here(served, cache, tmp_path, monkeypatch) -> None:
    content = archive(GOOD)
    served.files = {"p-1.tar.gz": content}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    here = RepositoryCache("../relative")
    tree, _ = await made(here, instance(content))
    await here.close()
    assert tree.is_relative_to(tmp_path / "relative")


async def test_another_file_than_the_pinned_one(served, cache) -> None:
    served.files = {"p-1.tar.gz": archive(GOOD)}
    with pytest.raises(TaskFault, match="is not the file that the row names"):
        await made(cache, instance(b"something else"))
    with pytest.raises(TaskFault, match="not pinned"):
        await made(cache, instance(b"", sha256="md5"))


async def test_what_the_index_does_not_have(served, cache) -> None:
    with pytest.raises(TaskFault, match=r"there is no p-1\.tar\.gz"):
        await made(cache, instance(b""))


async def test_an_index_that_is_down_is_not_the_rows_fault(served, cache) -> None:
    served.failures = 1000
    with pytest.raises(SandboxFault) as caught:
        await made(cache, instance(b""))
    assert caught.value.code == "index_unreachable"
    assert "as pip is set to: http://127.0.0.1:" in str(caught.value)
    assert "PIP_INDEX_URL" in str(caught.value)
    assert len(served.asked) == index.ATTEMPTS


def test_what_a_project_says_it_needs(tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "requirements-test.txt").write_text("-r more.txt\n# no\nsix==1.0 --hash=sha256:0\n./local\n")
    (tmp_path / "more.txt").write_text("trio ; python_version > '3'\n-e .\nhttps://example.invalid/x.whl\n")
    (tmp_path / "tox.ini").write_text("[testenv]\ndeps =\n    py37: mock\n    -r{toxinidir}/more.txt\n")
    (tmp_path / "outside.txt").symlink_to("/etc/hostname")
    found = find(tmp_path, "some-project")
    assert found.required == ("attrs>=20",)
    assert set(found.optional) == {
        "pytest<7",
        "cryptography",
        "coverage==5.0.4",
        "hypothesis",
        "ruff",
        "six==1.0",
        'trio; python_version > "3"',
        "mock",
    }


def test_what_setup_py_says_is_read_and_not_run(tmp_path) -> None:
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\nNEEDS = ['six']\nraise SystemExit\n"
        "setup(name='p', install_requires=NEEDS, extras_require={'test': ['mock'], 'docs': ['sphinx']}, version=f())\n"
    )
    found = find(tmp_path, "p")
    assert (found.required, found.optional) == (("six",), ("mock",))


def test_pips_settings(tmp_path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://one.invalid/simple\nextra-index-url =\n  https://two.invalid/simple\n"
        "  https://three.invalid/simple\ntimeout = 7\n[install]\ntrusted-host = one.invalid\n"
    )
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": "/no", "PIP_CONFIG_FILE": str(file), "PIP_CERT": "/ca.pem"}
    settings = PipSettings.read(environ)
    assert settings.indexes == (
        "https://one.invalid/simple",
        "https://two.invalid/simple",
        "https://three.invalid/simple",
    )
    assert (settings.cert, settings.timeout, settings.trusted_hosts) == ("/ca.pem", 7.0, ("one.invalid",))
    for_uv = settings.for_uv({"SSL_CERT_FILE": "/mine.pem"})
    assert for_uv["UV_DEFAULT_INDEX"] == "https://one.invalid/simple"
    assert "SSL_CERT_FILE" not in for_uv
    assert PipSettings.read(environ | {"PIP_INDEX_URL": "https://four.invalid"}).indexes[0] == "https://four.invalid"
    assert PipSettings.read(environ | {"PIP_NO_INDEX": "1"}).indexes == ()
