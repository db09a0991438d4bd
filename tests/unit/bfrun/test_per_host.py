"""Tests which hosts are reached over SSH, and by which launcher."""

from __future__ import annotations

import pytest

import bfrun.launch.per_host
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import LOCALHOST, Host
from bfrun.launch.per_host import PerHostLauncher, remote_hosts
from tests.support.deadlines import DEADLINE_S

OTHER = Host("192.0.2.99", 2)
OWN = Host("192.0.2.1", 2)


@pytest.fixture(autouse=True)
def own_address(monkeypatch):
    monkeypatch.setattr(
        bfrun.launch.per_host, "interface_addresses", lambda: [["eth0", OWN.name]]
    )


def config(*hosts: Host, **options) -> LaunchConfig:
    return LaunchConfig(command=("x",), hosts=hosts, **options)


def test_only_other_machines_are_remote():
    assert remote_hosts(config(LOCALHOST, OWN, OTHER)) == {OTHER}
    assert remote_hosts(config()) == frozenset()


def test_hosts_that_are_known_are_not_resolved(monkeypatch):
    resolved = []

    def resolve(host, own_addresses):
        resolved.append(host)
        return False

    monkeypatch.setattr(bfrun.launch.per_host, "is_local", resolve)
    assert remote_hosts(config(OWN, OTHER), {OWN: True}) == {OTHER}
    assert resolved == [OTHER]


def test_everything_is_remote_when_ssh_is_asked_for():
    assert remote_hosts(config(LOCALHOST, OTHER, launcher="ssh")) == {LOCALHOST, OTHER}


def test_local_launcher_refuses_other_machines():
    assert remote_hosts(config(LOCALHOST, OWN, launcher="local")) == frozenset()
    with pytest.raises(LaunchError, match=r"host '192\.0\.2\.99' is not this machine"):
        remote_hosts(config(OWN, OTHER, launcher="local"))


def test_this_machine_needs_no_ssh_settings():
    settings = config(OWN, ssh_config="/no/such/file")
    launcher = PerHostLauncher(settings, frozenset())
    link = launcher.start(OWN, ["sh", "-c", "exit 3"], 5)
    assert link.wait(DEADLINE_S) == 3
    link.close()
    launcher.close()


def test_settings_are_read_before_anything_starts():
    with pytest.raises(LaunchError, match=r"SSH settings '/no/such/file'"):
        PerHostLauncher(config(OTHER, ssh_config="/no/such/file"), frozenset({OTHER}))
