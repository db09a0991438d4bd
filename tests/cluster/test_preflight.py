"""The pre-flight of several hosts: ``bfrun --check`` and choice of addresses."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from bfrun.cli import main
from bfrun.config import LaunchConfig
from bfrun.hosts import LOCALHOST, Host
from bfrun.launch.per_host import PerHostLauncher
from bfrun.preflight.preflight import HostReport, run_preflight
from tests.support.cluster import ClusterHost
from tests.support.deadlines import wait_until
from tests.support.launch import launched

pytestmark = pytest.mark.cluster
HOSTS = tuple(Host(f"node{number}", 1) for number in (1, 2, 3))


def preflight(cluster, *hosts: Host, **options) -> list[HostReport]:
    config = LaunchConfig(
        command=(sys.executable, "x.py"),
        hosts=hosts,
        ssh_config=str(cluster.ssh_config),
        **options,
    )
    remote = frozenset(host for host in hosts if host != LOCALHOST)
    launcher = PerHostLauncher(config, remote)
    try:
        return run_preflight(config, hosts, launcher, {})
    finally:
        launcher.close()


def check(cluster, *arguments: str) -> int:
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1,node2,node3"]
    return main(["--check", *options, *arguments, sys.executable])


@pytest.fixture
def second_network(cluster):
    """Give each host a docker bridge with the same address, as on real machines."""
    for host in cluster.hosts:
        host.run("ip", "link", "add", "docker0", "type", "bridge")
        host.run("ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
        host.run("ip", "link", "set", "docker0", "up")
    yield
    for host in cluster.hosts:
        host.run("ip", "link", "del", "docker0")


def test_all_hosts_pass(cluster):
    reports = preflight(cluster, *HOSTS)
    for report, host in zip(reports, cluster.hosts, strict=True):
        assert report.problems == []
        assert report.answer["hostname"] == host.name
        assert report.addresses == (host.address,)


def test_this_machine_among_others_gets_the_address_that_they_reach(cluster):
    here, there = preflight(cluster, LOCALHOST, HOSTS[0])
    assert here.addresses == (cluster.driver_address,)
    assert there.addresses == (cluster.hosts[0].address,)


def test_address_of_a_docker_bridge_is_never_taken(cluster, second_network):
    for report in preflight(cluster, *HOSTS):
        assert [ip for _, ip in report.answer["addresses"]].count("172.17.0.1") == 1
        assert "172.17.0.1" not in report.addresses


def test_excluding_every_usable_interface_is_an_error(cluster, second_network):
    for report in preflight(cluster, *HOSTS, network_interface="^eth0"):
        (problem,) = report.problems
        assert "172.17.0.1 (docker0) not reached from" in problem


def test_firewall_between_two_hosts_is_named(cluster):
    first, second = cluster.hosts[:2]
    first.run("ip", "route", "add", "blackhole", second.address)
    try:
        reports = preflight(cluster, *HOSTS)
    finally:
        first.run("ip", "route", "del", "blackhole", second.address)
    # Both directions fail, because no answer to the second host gets through.
    assert f"{first.address} (eth0) not reached from node2" in reports[0].problems[0]
    assert f"{second.address} (eth0) not reached from node1" in reports[1].problems[0]
    assert reports[2].problems == []


def test_check_prints_a_table(cluster, capsys):
    assert check(cluster) == 0
    output = capsys.readouterr().out
    for host in cluster.hosts:
        assert host.address in output
    assert "3 hosts are ready" in output


def test_check_names_every_failing_host(cluster, capsys):
    cluster.hosts[1].cut_link()
    assert check(cluster, "--start-timeout", "60") == 1
    output = capsys.readouterr().out
    assert "host 'node2': no" in output
    assert "host 'node1'" not in output


def test_check_with_a_wrong_interpreter(cluster, capsys):
    assert check(cluster, "--python", "/no/python") == 1
    output = capsys.readouterr().out
    assert output.count("no such interpreter: /no/python") == 3


def test_missing_directory_is_found_before_the_start(cluster, monkeypatch, tmp_path):
    only_here = tmp_path / "job"
    only_here.mkdir()
    monkeypatch.chdir(only_here)
    cluster.hosts[0].run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path))
    try:
        reports = preflight(cluster, *HOSTS)
    finally:
        cluster.hosts[0].run("umount", str(tmp_path))
    assert f"directory {only_here} does not exist" in reports[0].problems[0]
    assert reports[1].problems == []


def test_job_does_not_start_unless_all_hosts_pass(cluster, tmp_path, capsys):
    touched = tmp_path / "touched"
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1"]
    cluster.hosts[1].cut_link()
    arguments = [*options, "--start-timeout", "60", "touch", str(touched)]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert (
        "nothing was started, because the pre-flight failed:\n  host 'node2': no"
        in error
    )
    assert not Path(touched).exists()


def test_dry_run_asks_hosts_without_slots_for_their_cores(cluster, capsys):
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1,node2:1"]
    assert main([*options, "--dry-run", "true"]) == 0
    output = capsys.readouterr().out
    cores = int(output.partition(" ranks on 2 hosts")[0]) - 1
    assert cores >= 1
    assert output.count("node1") == cores


def is_being_dialled(host: ClusterHost) -> bool:
    """Return whether a connection to the host waits for its first answer."""
    address = socket.inet_aton(host.address)[::-1].hex().upper()
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[2:4] == [f"{address}:0016", "02"] for line in table)


def test_interrupt_need_not_wait_for_a_silent_host(cluster, tmp_path):
    silent = cluster.hosts[1]
    silent.fall_silent()
    options = ["--ssh-config", str(cluster.ssh_config), "-H", "node1:1,node2:1"]
    with launched(tmp_path, *options, "--start-timeout", "300", "true") as job:
        wait_until(lambda: is_being_dialled(silent), "nobody dials")
        job.signal(signal.SIGINT)
        assert job.wait() == 128 + signal.SIGINT
        assert job.err == "bfrun: interrupted; no rank is running\n"
