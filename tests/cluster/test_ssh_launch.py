"""``bfrun -H node1:2,...`` over SSH, from the command line to the ranks."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import Launched, launched

pytestmark = pytest.mark.cluster
TELL = "echo $BLUECOMM_RANK $(uname -n)"


@pytest.fixture
def launch(cluster, tmp_path) -> Iterator[Callable[..., Launched]]:
    """Return a function that starts ``bfrun`` with the cluster's SSH settings."""
    with ExitStack() as stack:

        def launch(*arguments: str, **more: Any) -> Launched:
            options = ["--ssh-config", str(cluster.ssh_config)]
            if "--ssh-config" in arguments:
                options = []
            job = launched(tmp_path, *options, *arguments, **more)
            return stack.enter_context(job)

        yield launch


def finished(job: Launched) -> list[str]:
    """Wait for a job that must succeed, and return its output lines, sorted."""
    code = job.wait()
    assert code == 0, job.err
    return sorted(job.out.splitlines())


def test_ranks_run_on_their_hosts(launch):
    job = launch("-H", "node1:2,node2:1,node3:2", "-np", "4", "sh", "-c", TELL)
    assert finished(job) == [
        "[0] 0 node1",
        "[1] 1 node1",
        "[2] 2 node2",
        "[3] 3 node3",
    ]


def test_this_machine_takes_part(launch):
    job = launch("-H", "node1:1,localhost:1", "sh", "-c", TELL)
    assert finished(job) == ["[0] 0 node1", f"[1] 1 {socket.gethostname()}"]


def test_hostfile(launch, tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two\nnode2 slots=1\n\nnode1:1  # second\n")
    job = launch("--hostfile", str(path), "sh", "-c", TELL)
    assert finished(job) == ["[0] 0 node2", "[1] 1 node1"]


def test_torch_variables_and_a_master_that_others_reach(launch, cluster):
    words = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR"
    job = launch("-H", "node1:1,node2:2", "sh", "-c", f"echo {words}")
    master = cluster.hosts[0].address
    assert finished(job) == [
        f"[0] 0 3 0 1 {master}",
        f"[1] 1 3 0 2 {master}",
        f"[2] 2 3 1 2 {master}",
    ]


def test_chosen_addresses_are_shown(launch, cluster):
    job = launch("-v", "-H", "node1:1,node2:1", "true")
    assert finished(job) == []
    for host in cluster.hosts[:2]:
        assert f"{host.name}  {host.address}" in job.err
    assert "0 processes left on 2 hosts" in job.err


def test_environment_reaches_every_rank_but_no_command_line(launch, tmp_path):
    (tmp_path / "env").write_text("FROM_FILE='two words'\n")
    seen = tmp_path / "seen"
    script = (
        f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' > {seen}.$RANK; "
        'echo "$TOKEN|$FROM_FILE|$NCCL_DEBUG|$NCCL_NET|$UNASKED|$OMPI_COMM_WORLD_RANK"'
    )
    secret = "s3cret-of-this-test"
    options = ["-x", "TOKEN", "--env-file", str(tmp_path / "env"), "--enable-net"]
    job = launch(
        *options,
        *("-H", "node1:1,node2:1", "sh", "-c", script),
        environ={
            "TOKEN": secret,
            "NCCL_DEBUG": "WARN",
            "UNASKED": "1",
            "OMPI_COMM_WORLD_RANK": "5",
        },
    )
    lines = [f"[{rank}] {secret}|two words|WARN|BlueComm||" for rank in (0, 1)]
    assert finished(job) == lines
    for name in ("node1", "node2"):
        assert job.err.count(f"bfrun: host '{name}': NCCL's network is BlueComm ") == 1
    for rank in (0, 1):
        commands = Path(f"{seen}.{rank}").read_text()
        assert "bfrun" in commands
        assert secret not in commands


def test_working_directory_and_words_of_the_command_stay(launch, tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    hosts = ("-H", "node1:1,node2:1")
    job = launch(*hosts, "printf", "%s|%s\n", "$HOME 'x'", "a  b")
    assert finished(job) == ["[0] $HOME 'x'|a  b", "[1] $HOME 'x'|a  b"]
    assert finished(launch(*hosts, "pwd", cwd=folder)) == [
        f"[0] {folder}",
        f"[1] {folder}",
    ]


def test_first_failure_is_named_with_its_host(launch):
    script = '[ "$RANK" = 2 ] && { echo no luck >&2; exit 7; }; sleep 1000'
    job = launch("-H", "node1:2,node2:2", "sh", "-c", script)
    assert job.wait() == 7
    assert "rank 2 on node2" in job.err
    assert "no luck" in job.err


def test_agent_needs_no_installed_bfrun(launch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho Welcome >&1\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    job = launch(
        *("--python", str(python), "-H", "node1:1,node2:1", "sh", "-c", TELL),
        environ={"PATH": "/usr/bin:/bin"},
    )
    assert finished(job) == ["[0] 0 node1", "[1] 1 node2"]


@pytest.mark.slow
def test_a_host_whose_agent_starts_late(launch, tmp_path):
    # The agent of node1 is ready long before; it ends after 4 s without a heartbeat.
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$4" in *"bfrun.agent"*) '
        f'[ "$(uname -n)" = node1 ] || sleep 6;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    job = launch("--python", str(python), "-H", "node1:1,node2:1", "sh", "-c", TELL)
    assert finished(job) == ["[0] 0 node1", "[1] 1 node2"]


def test_unknown_host_key_starts_nothing(launch, cluster, tmp_path):
    settings = tmp_path / "ssh_config"
    text = cluster.ssh_config.read_text()
    settings.write_text(text.replace(str(cluster.known_hosts), str(tmp_path / "none")))
    job = launch(
        "--ssh-config", str(settings), "-H", "node1:1,localhost:1", "echo", "x"
    )
    assert job.wait() == 1
    assert job.out == ""
    assert "host 'node1': its SSH host key is not known" in job.err
    assert "compare the fingerprint" in job.err


def test_wrong_port_starts_nothing(launch):
    job = launch("-p", "2222", "-H", "node1:1,node2:1", "echo", "x")
    assert job.wait() == 1
    assert job.out == ""
    for name in ("node1", "node2"):
        assert f"host '{name}': no connection: Connection refused" in job.err


def test_job_through_a_jump_host(launch, cluster, tmp_path):
    node2 = cluster.hosts[1]
    node2.run("ip", "route", "add", "blackhole", cluster.driver_address)
    try:
        settings = tmp_path / "ssh_config"
        jump = "Host node2\n  ProxyJump node1\n"
        settings.write_text(jump + cluster.ssh_config.read_text())
        options = ["--ssh-config", str(settings), "-H", "node1:1,node2:1"]
        job = launch(*options, "sh", "-c", TELL)
        assert finished(job) == ["[0] 0 node1", "[1] 1 node2"]
    finally:
        node2.run("ip", "route", "del", "blackhole", cluster.driver_address)


def test_much_output_from_several_hosts_is_whole(launch):
    script = "i=0; while [ $i -lt 3000 ]; do echo $RANK-$i; i=$((i+1)); done"
    job = launch("-H", "node1:2,node2:2", "sh", "-c", script)
    lines = finished(job)
    expected = [f"[{rank}] {rank}-{i}" for rank in range(4) for i in range(3000)]
    assert lines == sorted(expected)


def test_standard_input_reaches_rank_0_on_its_host(launch, tmp_path):
    path = tmp_path / "input"
    path.write_text("a\nb\n")
    with path.open("rb") as file:
        job = launch("--stdin", "-H", "node1:1,node2:1", "cat", stdin=file.fileno())
        assert finished(job) == ["[0] a", "[0] b"]
