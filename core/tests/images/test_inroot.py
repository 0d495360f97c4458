"""An image's links must not lead us onto the host."""

from __future__ import annotations

import sys

import pytest

from prorl.api import SandboxFault
from prorl.sandbox.images import view
from prorl.sandbox.images.inroot import InRoot
from prorl.sandbox.images.interpreter import find_python, image_environment


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    for directory in ("etc/alternatives", "usr/bin", "usr/local/bin", ".singularity.d/env"):
        (root / directory).mkdir(parents=True)
    return root


def program(root, path: str) -> None:
    (root / path).write_text("")
    (root / path).chmod(0o755)


def test_links_end_inside(root, tmp_path) -> None:
    (tmp_path / "secret").write_text("secret")
    (root / "etc/passwd").symlink_to(tmp_path / "secret")
    (root / "etc/group").symlink_to("../../secret")
    (root / "up").symlink_to("..")
    (root / "secret").write_text("the image's own")
    inside = InRoot(str(root))
    assert inside.read("/etc/passwd") is None
    assert inside.read("/etc/group") == "the image's own"  # .. of the root is the root
    assert inside.resolve("/up/../up/secret") == "/secret"
    assert inside.read("/up/up/../../../secret") == "the image's own"


def test_a_loop_of_links_and_what_is_no_file(root) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    inside = InRoot(str(root))
    assert inside.resolve("/a") is None
    assert inside.read("/usr") is None
    assert inside.read("/nothing") is None
    assert inside.read("/") is None
    (root / "big").write_bytes(bytes(2000))
    assert inside.read("/big", limit=1000) is None


@pytest.mark.parametrize("name", ["run", "tmp", "dev", "workspace"])
def test_a_link_where_something_must_be_mounted(root, name: str) -> None:
    (root / name).symlink_to("/oldroot/etc")
    with pytest.raises(SandboxFault, match=f"its /{name} is a link") as caught:
        view.check(InRoot(str(root)), ["/proc", "/dev", "/tmp", "/run/prorl/inside", "/workspace/x"])
    assert caught.value.code == "bad_image"


def test_python_by_way_of_alternatives(root) -> None:
    inside = InRoot(str(root))
    assert find_python(inside) is None
    program(root, "usr/bin/python3.6")
    (root / "etc/alternatives/python3").symlink_to("/usr/bin/python3.6")
    (root / "usr/bin/python3").symlink_to("/etc/alternatives/python3")
    assert find_python(inside) is None
    program(root, "usr/bin/python3.11")
    assert find_python(inside) == "/usr/bin/python3.11"
    program(root, "usr/local/bin/python3.12")
    (root / "usr/local/bin/python3").symlink_to("python3.12")
    assert find_python(inside) == "/usr/local/bin/python3"
    (root / "opt/own/bin").mkdir(parents=True)
    program(root, "opt/own/bin/python3")
    assert find_python(inside, "/opt/own/bin:/usr/bin") == "/opt/own/bin/python3"


def test_a_python_that_leads_to_the_hosts_own_is_none(root) -> None:
    (root / "usr/bin/python3").symlink_to(sys.executable)
    assert find_python(InRoot(str(root))) is None


def test_the_environment_of_a_docker_image(root) -> None:
    (root / ".singularity.d/env/10-docker2singularity.sh").write_text(
        "#!/bin/sh\n"
        'export PATH="/opt/own/bin:/usr/bin"\n'
        'export LANG="${LANG:-"C.UTF-8"}"\n'
        'export SAYS="${SAYS:-"two words"}"\n'
        'export NOTHING="${NOTHING:-""}"\n'
        'export CODE="${CODE:-"$(touch /tmp/x)"}"\n'
    )
    assert image_environment(InRoot(str(root))) == {
        "PATH": "/opt/own/bin:/usr/bin",
        "LANG": "C.UTF-8",
        "SAYS": "two words",
        "NOTHING": "",
        "CODE": "$(touch /tmp/x)",
    }
