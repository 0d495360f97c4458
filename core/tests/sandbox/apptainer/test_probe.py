"""What the probe says of machines that lack something."""

from __future__ import annotations

import pytest

from prorl.sandbox.mends import explain


@pytest.mark.parametrize(
    ("file", "value", "mend"),
    [
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor profile"),
    ],
)
def test_user_namespaces_that_are_off(tmp_path, file: str, value: str, mend: str) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(f"{value}\n")
    said = explain("it failed", sysctl=tmp_path, uid=1000)
    assert said.startswith("it failed; ")
    assert mend in said
    (tmp_path / file).write_text("15000\n" if value == "0" else "0\n")
    assert explain("it failed", sysctl=tmp_path, uid=1000) == "it failed"


def test_a_user_without_a_name(tmp_path) -> None:
    said = explain("FATAL: user: unknown userid 4321", sysctl=tmp_path, uid=4321)
    assert "getent passwd 4321" in said


def test_a_root_without_the_capability(tmp_path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t00000000a80425fb\n")
    assert "CAP_SYS_ADMIN" in explain("it failed", status=status, uid=0)
    status.write_text("Name:\tx\nCapEff:\t000001ffffffffff\n")
    assert explain("it failed", status=status, uid=0) == "it failed"
