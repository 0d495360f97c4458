"""The test kit that task authors get."""

from __future__ import annotations

from prorl.testing.lab import Lab


def test_settings_of_the_server_leave_the_port_a_free_one():
    with Lab([], settings={"server": {"name": "one"}}) as one, Lab([], settings={"server": {"name": "two"}}) as two:
        assert one.url != two.url
        assert [lab.client.status().server for lab in (one, two)] == ["one", "two"]
