"""Tests the byte stream to a program on another host."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import ProcessConnection
from bfrun.launch.ssh import SshLauncher
from tests.support.deadlines import DEADLINE_S, wait_until

pytestmark = pytest.mark.cluster
NODE1, NODE2, NODE3 = Host("node1"), Host("node2"), Host("node3")


def make_launcher(ssh_config: Path, **options) -> SshLauncher:
    return SshLauncher(
        LaunchConfig(command=("x",), ssh_config=str(ssh_config), **options)
    )


@pytest.fixture
def launcher(cluster) -> Iterator[SshLauncher]:
    made = make_launcher(cluster.ssh_config)
    yield made
    made.close()


def read(connection: ProcessConnection, nbytes: int | None = None) -> bytes:
    """Read ``nbytes``, or until the end of the stream."""
    got = b""
    deadline = time.monotonic() + DEADLINE_S
    while nbytes is None or len(got) < nbytes:
        left = deadline - time.monotonic()
        assert left > 0, f"no more than {got!r} after {DEADLINE_S} s"
        select.select([connection], [], [], left)
        data = connection.receive(65536)
        if data == b"":
            break
        got += data or b""
    return got


def test_runs_a_program_on_the_host(launcher):
    connection = launcher.start(NODE2, ["uname", "-n"], DEADLINE_S)
    assert read(connection) == b"node2\n"
    assert connection.wait(DEADLINE_S) == 0
    connection.close()
    connection.close()


def test_arguments_reach_the_program_unchanged(launcher):
    words = ["a b", "'", '"', "$HOME", "*", "\\", "!", ";", "", "#"]
    connection = launcher.start(NODE1, ["printf", "<%s>", *words], DEADLINE_S)
    assert read(connection) == "".join(f"<{word}>" for word in words).encode()
    connection.close()


def test_bytes_pass_both_ways_and_back_pressure_is_felt(launcher):
    connection = launcher.start(NODE1, ["cat"], DEADLINE_S)
    sent = bytes(range(256)) * 4096
    done = 0
    got = b""
    deadline = time.monotonic() + DEADLINE_S
    while len(got) < len(sent) and time.monotonic() < deadline:
        done += connection.send(memoryview(sent)[done:]) if done < len(sent) else 0
        got += connection.receive(65536) or b""
    assert got == sent
    connection.close()


def test_send_takes_nothing_when_nobody_reads(launcher):
    # The program ends when nobody reads its output any more.
    program = ["sh", "-c", "while sleep 0.2; do echo; done"]
    connection = launcher.start(NODE1, program, DEADLINE_S)
    total = 0
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        taken = connection.send(bytes(65536))
        total += taken
        if not taken:
            time.sleep(0.2)
            if not connection.send(bytes(65536)):
                break
    assert 0 < total < 64 * 2**20
    start = time.monotonic()
    connection.close()
    assert time.monotonic() - start < DEADLINE_S


def test_close_ends_the_input_of_the_program(launcher, cluster):
    connection = launcher.start(NODE1, ["cat"], DEADLINE_S)
    assert connection.send(b"x") == 1
    assert read(connection, 1) == b"x"
    connection.close()
    cluster.wait_until_empty()


def test_exit_status_and_last_words(launcher):
    connection = launcher.start(
        NODE1, ["sh", "-c", "echo no luck >&2; exit 7"], DEADLINE_S
    )
    assert read(connection) == b""
    assert connection.wait(DEADLINE_S) == 7
    assert connection.diagnosis() == "no luck"
    connection.close()


def test_one_connection_serves_one_start_after_another(launcher):
    ports = set()
    for _ in range(2):
        connection = launcher.start(
            NODE1, ["sh", "-c", "echo $SSH_CONNECTION"], DEADLINE_S
        )
        ports.add(read(connection))
        assert connection.wait(DEADLINE_S) == 0
        connection.close()
    assert len(ports) == 1


def test_a_cut_link_does_not_block(launcher, cluster):
    connection = launcher.start(NODE1, ["cat"], DEADLINE_S)
    cluster.hosts[0].cut_link()
    start = time.monotonic()
    for _ in range(2000):
        connection.send(bytes(65536))
        connection.receive(65536)
    connection.close()
    assert time.monotonic() - start < DEADLINE_S
    cluster.hosts[0].restore_link()
    # A thread that has been told to end may need a moment on a busy machine.
    wait_until(lambda: threading.active_count() < 10, str(threading.enumerate()))


def test_unknown_host_key_is_refused_with_the_remedy(cluster, tmp_path):
    settings = tmp_path / "ssh_config"
    text = cluster.ssh_config.read_text()
    settings.write_text(text.replace(str(cluster.known_hosts), str(tmp_path / "none")))
    launcher = make_launcher(settings)
    with pytest.raises(
        LaunchError,
        match=r"host 'node1': its SSH host key is not known: ssh-ed25519 SHA256:.*"
        r"run 'ssh -p 22 root@10\.\S+' once and compare the fingerprint",
    ):
        launcher.start(NODE1, ["true"], DEADLINE_S)
    launcher.close()


def test_unknown_host_key_is_accepted_where_the_settings_say_so(cluster, tmp_path):
    settings = tmp_path / "ssh_config"
    text = cluster.ssh_config.read_text()
    settings.write_text(
        text.replace(str(cluster.known_hosts), str(tmp_path / "none"))
        + "  StrictHostKeyChecking no\n"
    )
    launcher = make_launcher(settings)
    connection = launcher.start(NODE1, ["true"], DEADLINE_S)
    assert connection.wait(DEADLINE_S) == 0
    connection.close()
    launcher.close()


def test_changed_host_key_is_refused(cluster, tmp_path):
    other = (cluster.folder / "identity.pub").read_text()
    known = tmp_path / "known_hosts"
    known.write_text(f"{cluster.hosts[0].address} {other}")
    settings = tmp_path / "ssh_config"
    text = cluster.ssh_config.read_text()
    settings.write_text(text.replace(str(cluster.known_hosts), str(known)))
    launcher = make_launcher(settings)
    with pytest.raises(LaunchError, match=r"host key has changed.*keygen -R"):
        launcher.start(NODE1, ["true"], DEADLINE_S)
    launcher.close()


def test_wrong_port(cluster):
    launcher = make_launcher(cluster.ssh_config, ssh_port=2222)
    with pytest.raises(
        LaunchError, match=r"no connection: Connection refused .* port 2222.*sshd runs"
    ):
        launcher.start(NODE1, ["true"], DEADLINE_S)
    launcher.close()


def test_wrong_key_asks_no_password(cluster, tmp_path):
    key = tmp_path / "key"
    key.write_bytes((cluster.folder / "host_key").read_bytes())
    key.chmod(0o600)
    launcher = make_launcher(cluster.ssh_config, ssh_identity_file=str(key))
    with pytest.raises(
        LaunchError, match=r"login refused, because no key was accepted.*-i"
    ):
        launcher.start(NODE1, ["true"], DEADLINE_S)
    launcher.close()


def test_host_that_does_not_answer(cluster):
    cluster.hosts[2].cut_link()
    launcher = make_launcher(cluster.ssh_config)
    start = time.monotonic()
    with pytest.raises(LaunchError, match="host 'node3': no"):
        launcher.start(NODE3, ["true"], 1.0)
    assert time.monotonic() - start < DEADLINE_S
    launcher.close()


def test_jump_host(cluster, tmp_path):
    node3 = cluster.hosts[2]
    node3.run("ip", "route", "add", "blackhole", cluster.driver_address)
    try:
        settings = tmp_path / "ssh_config"
        jump = "Host node3\n  ProxyJump node1,root@node2:22\n"
        settings.write_text(jump + cluster.ssh_config.read_text())
        launcher = make_launcher(settings)
        connection = launcher.start(NODE3, ["sh", "-c", "echo $SSH_CLIENT"], DEADLINE_S)
        assert read(connection).startswith(cluster.hosts[1].address.encode() + b" ")
        connection.close()
        launcher.close()
    finally:
        node3.run("ip", "route", "del", "blackhole", cluster.driver_address)


def test_jump_host_that_cannot_go_on_is_named(cluster, tmp_path):
    settings = tmp_path / "ssh_config"
    jump = "Host node3\n  ProxyJump node1\n  Port 2222\n"
    settings.write_text(jump + cluster.ssh_config.read_text())
    launcher = make_launcher(settings)
    with pytest.raises(LaunchError, match="host 'node3': the SSH server refused"):
        launcher.start(NODE3, ["true"], DEADLINE_S)
    settings.write_text(jump.replace("node1", "node1:2222") + settings.read_text())
    launcher = make_launcher(settings)
    with pytest.raises(LaunchError, match="host 'node3', jump host 'node1': no conn"):
        launcher.start(NODE3, ["true"], DEADLINE_S)
    launcher.close()


def test_hosts_behind_one_jump_host_share_its_connection(cluster, tmp_path):
    settings = tmp_path / "ssh_config"
    jump = "Host node2 node3\n  ProxyJump node1\n"
    settings.write_text(jump + cluster.ssh_config.read_text())
    launcher = make_launcher(settings)
    before = set(threading.enumerate())
    links = [launcher.start(host, ["cat"], DEADLINE_S) for host in (NODE2, NODE3)]
    # Three SSH connections with one thread each, and three threads per program.
    assert len(set(threading.enumerate()) - before) == 3 + 2 * 3
    for connection in links:
        connection.close()
    launcher.close()


@pytest.fixture
def ssh_agent(cluster, tmp_path, monkeypatch):
    """Run an agent that holds the cluster's key under another name."""
    path = str(tmp_path / "agent")
    with subprocess.Popen(["ssh-agent", "-D", "-a", path]) as process:
        while not os.path.exists(path):
            assert process.poll() is None
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        key = tmp_path / "key"
        key.write_bytes(cluster.identity.read_bytes())
        key.chmod(0o600)
        subprocess.run(["ssh-add", "-q", str(key)], check=True)
        yield
        process.terminate()


def test_key_of_the_ssh_agent_is_used(cluster, tmp_path, ssh_agent):
    settings = tmp_path / "ssh_config"
    text = cluster.ssh_config.read_text()
    settings.write_text(text.replace(f"IdentityFile {cluster.identity}", ""))
    launcher = make_launcher(settings)
    connection = launcher.start(NODE1, ["true"], DEADLINE_S)
    assert connection.wait(DEADLINE_S) == 0
    connection.close()
    launcher.close()
