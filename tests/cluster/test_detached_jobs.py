"""Jobs over SSH that go on without bfrun, or without its connection to a host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.deadlines import wait_until
from tests.support.detached import (
    CLIENT,
    OPTIONS,
    attach_after_death,
    beside,
    kill,
    lines_of,
    run_beside,
    wait_until_up,
)
from tests.support.launch import Launched, launched, python

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

TRAINING = """
import os, time, torch
import bluecomm as bf
bf.init()
x = torch.full((3,), float(bf.rank()))
def steps_until(name):
    while not bf.broadcast(torch.tensor([float(os.path.exists(name))]), 0).item():
        bf.neighbor_allreduce(x)
print("up", flush=True)
steps_until("orphaned")
mean = bf.allreduce(x)
open(f"alone-{bf.rank()}", "w").close()
steps_until("go")
print("done", mean.tolist(), flush=True)
"""
# Ranks 0 and 1 go on without the others, who must wait.
TWO_SIDES = """
import os, time, torch
import bluecomm as bf
bf.init()
x = torch.full((3,), float(bf.rank()))
print("up", flush=True)
while len(bf.elastic.members()) == 4:
    bf.neighbor_allreduce(x)
open(f"alone-{bf.rank()}", "w").close()
while not os.path.exists("go"):
    bf.neighbor_allreduce(x)
"""


@contextlib.contextmanager
def two_hosts(
    cluster: Cluster,
    folder: Path,
    body: str,
    *options: str,
    hosts: str = "node1:2,node2:2",
) -> Iterator[Launched]:
    """Run a job of two ranks on each of two hosts, all of which have met."""
    options = (*OPTIONS, *options, "--ssh-config", str(cluster.ssh_config))
    options = (*options, "-H", hosts, "-x", "PYTHONPATH")
    with launched(folder, *options, *python(body)) as job:
        wait_until_up(job, 4)
        yield job


def assert_ended(cluster: Cluster, job: Launched) -> None:
    cluster.wait_until_empty()
    assert job.left() == {}
    assert job.folders_left() == []


def ranks_on(cluster: Cluster, number: int) -> int:
    """Return the number of ranks that run on a host."""
    commands = cluster.hosts[number].processes().values()
    return sum("rank_client" in command for command in commands)


def break_connection(cluster: Cluster, number: int) -> None:
    """End the SSH connections of a host while both ends and the network live."""
    sshd = cluster.hosts[number].sshd.pid
    children = Path(f"/proc/{sshd}/task/{sshd}/children").read_text().split()
    assert children
    for pid in children:
        os.kill(int(pid), signal.SIGKILL)


def test_ranks_of_two_hosts_train_on_after_the_death_of_bfrun(cluster, tmp_path):
    with two_hosts(cluster, tmp_path, TRAINING) as job:
        second = attach_after_death(job, tmp_path, ranks=4)
        done = [f"[{rank}] done [1.5, 1.5, 1.5]" for rank in range(4)]
        assert lines_of(second) == done
        assert "ranks; lost" not in second.err
        assert_ended(cluster, job)


def test_one_side_of_a_cut_trains_on_without_bfrun(cluster, tmp_path):
    with two_hosts(cluster, tmp_path, TWO_SIDES) as job:
        kill(job)
        cluster.hosts[0].cut_link()
        for rank in range(2):
            wait_until((tmp_path / f"alone-{rank}").exists, lambda: job.out + job.err)
        with beside(job, tmp_path / "second", "--attach", "run_1") as second:
            second.wait_for("the connection to node1 is lost: .*; ranks 0-1 go on")
            cluster.hosts[0].restore_link()
            second.wait_for("node1 is connected again")
            (tmp_path / "go").touch()
            assert second.wait() == 0, second.err
        assert "finished with 2 of 4 ranks; lost" in second.err
        assert not list(tmp_path.glob("alone-[23]"))
        assert_ended(cluster, job)


def test_stop_ends_the_ranks_of_both_hosts(cluster, tmp_path):
    body, hosts = CLIENT + "await_file('never')\n", "localhost:2,node2:2"
    with two_hosts(cluster, tmp_path, body, hosts=hosts) as job:
        job.signal(signal.SIGHUP)
        assert job.wait() == 128 + signal.SIGHUP
        assert "bfrun --attach run_1" in job.err
        listed = run_beside(job, tmp_path / "listed", "--list")
        assert re.search(r"^run_1 +4 .* detached +\S", listed.out, re.M)
        assert set(cluster.processes()) == {"node2"}
        assert len(job.pids(r" -c ")) >= 2
        stopped = run_beside(job, tmp_path / "stopped", "--stop", "run_1")
        assert stopped.process.returncode == 0, stopped.err
        assert "ended by SIGTERM; 0 processes left on 2 hosts" in stopped.err
        assert_ended(cluster, job)
        assert "no job" in run_beside(job, tmp_path / "none", "--list").err


def test_a_broken_connection_costs_no_rank(cluster, tmp_path):
    body = CLIENT + "await_file('broken'); print('on', flush=True); await_file('go')\n"
    with two_hosts(cluster, tmp_path, body) as job:
        break_connection(cluster, 1)
        job.wait_for("the connection to node2 is lost: .*; ranks 2-3 go on until")
        (tmp_path / "broken").touch()
        job.wait_for("node2 is connected again")
        for rank in range(4):
            job.wait_for(rf"^\[{rank}\] on$")
        (tmp_path / "go").touch()
        assert job.wait() == 0, job.err
        assert "is lost with its agent" not in job.err
        assert_ended(cluster, job)


def test_ranks_of_a_host_that_was_cut_off_end_when_it_is_back(cluster, tmp_path):
    # Instead of an engine, ranks 0 and 1 exclude the others when the test says so.
    body = CLIENT + (
        "await_file('cut')\n"
        "if client.rank < 2:\n"
        "    for rank in (2, 3):\n"
        "        what = dict(rank=rank, cause='silent', seconds=0.5, stay=0)\n"
        "        client.send('excluded', **what)\n"
        "    await_file('go')\n"
        "await_file('go' if client.rank < 2 else 'never')\n"
    )
    with two_hosts(cluster, tmp_path, body, "--link-timeout", "2") as job:
        cluster.hosts[1].cut_link()
        job.wait_for("the connection to node2 is lost: it was silent for 4 s")
        (tmp_path / "cut").touch()
        for rank, left in ((2, 3), (3, 2)):
            what = rf"rank {rank} on node2 .* has been silent for 0.5 s"
            job.wait_for(rf"{what}; the job goes on with {left} of 4 ranks")
        assert ranks_on(cluster, 1) == 2
        cluster.hosts[1].restore_link()
        job.wait_for("node2 is connected again")
        wait_until(lambda: ranks_on(cluster, 1) == 0, lambda: job.err)
        (tmp_path / "go").touch()
        assert job.wait() == 0, job.err
        assert re.search(
            r"finished with 2 of 4 ranks; lost rank 2 \(silent\) .*, rank 3 "
            r"\(silent\) .*; 0 processes left on 2 hosts",
            job.err,
        ), job.err
        assert_ended(cluster, job)


def test_an_agent_that_was_killed_has_lost_its_ranks(cluster, tmp_path):
    body = CLIENT + "await_file('go')\n"
    with two_hosts(cluster, tmp_path, body) as job:
        found = cluster.hosts[1].processes()
        os.kill(max(pid for pid, text in found.items() if "bfrun" in text), 9)
        job.wait_for("rank 3 on node2 is lost with its agent: .*; the job goes on with")
        (tmp_path / "go").touch()
        assert job.wait() == 0, job.err
        assert "finished with 2 of 4 ranks" in job.err
        assert_ended(cluster, job)


def test_agents_that_nobody_attaches_to_end_their_ranks(cluster, tmp_path):
    body = CLIENT + "await_file('never')\n"
    with two_hosts(cluster, tmp_path, body, "--detached-limit", "0.1") as job:
        kill(job)
        cluster.wait_until_empty()
        late = run_beside(job, tmp_path / "late", "--attach", "run_1")
        assert late.process.returncode == 1
        assert_ended(cluster, job)
