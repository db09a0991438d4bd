"""``bluecomm.stats``: bytes per edge, waits, and exposed communication."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_communicator
from tests.support.deadlines import hear, say, wait_until
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

LATE_S = 0.1


def ring_round(count: int) -> bf.Stats:
    """Send a tensor around a one-way ring and return the counts."""
    bf.set_topology(bf.RingGraph(bf.size(), connect_style=2))
    bf.barrier()
    bf.reset_stats()
    bf.neighbor_allreduce(torch.ones(count))
    return bf.stats()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_bytes_are_those_of_the_topology(transport: str) -> None:
    for rank, stats in enumerate(run_ranks(3, ring_round, 1000, transport=transport)):
        right, left = (rank + 1) % 3, (rank - 1) % 3
        edges = {
            each.rank: each.operations["neighbor_allreduce"]
            for each in stats.neighbors
            if "neighbor_allreduce" in each.operations
        }
        sent = {peer: (e.messages_sent, e.bytes_sent) for peer, e in edges.items()}
        received = {
            peer: (e.messages_received, e.bytes_received) for peer, e in edges.items()
        }
        assert sent == {right: (1, 4000), left: (0, 0)}
        assert received == {right: (0, 0), left: (1, 4000)}
        assert stats.operations["neighbor_allreduce"].calls == 1
        assert stats.operations["neighbor_allreduce"].failures == 0
        assert {each.transport for each in stats.neighbors} == {transport}
        table = str(stats).splitlines()
        first = [line.split()[0] for line in table if line]
        rows = first[first.index("neighbor") + 1 :]
        assert rows[:2] == [str(each.rank) for each in stats.neighbors]
        assert ["neighbor_allreduce", "1", "0"] in [row.split()[:3] for row in table]


def wait_for_a_late_rank(folder: Path) -> tuple[bf.Stats, bf.Stats]:
    """Let rank 2 come when the others wait for it; return counts, and after a reset."""
    bf.barrier()
    bf.reset_stats()
    if bf.rank() == 2:
        for other in (0, 1):
            hear(folder, f"{other} waits")
        time.sleep(LATE_S)
        bf.allreduce(torch.ones(4))
    else:
        watcher = threading.Thread(target=say_that_it_waits, args=[folder, 2])
        watcher.start()
        bf.allreduce(torch.ones(4))
        watcher.join()
    counted = bf.stats()
    bf.barrier()
    bf.reset_stats()
    return counted, bf.stats()


def say_that_it_waits(folder: Path, late: int) -> None:
    """Tell the others when the call of this rank lacks nothing but one rank's data.

    Through NCCL only rank 0 waits for all ranks, and the others for rank 0.
    """
    engine = current_communicator().world.engine

    def lacks_late_rank() -> bool:
        awaited = [one["waiting_for"] for one in engine.pending()]
        return [late] in awaited or ([0] in awaited and (folder / "0 waits").exists())

    wait_until(lacks_late_rank, f"nothing waits for rank {late}")
    say(folder, f"{bf.rank()} waits")


def test_the_late_rank_is_waited_for(tmp_path: Path) -> None:
    for rank, (stats, fresh) in enumerate(run_ranks(3, wait_for_a_late_rank, tmp_path)):
        if rank != 2:
            late = next(each for each in stats.neighbors if each.rank == 2)
            assert late.late_s >= LATE_S
            assert late.wait_s >= late.late_s
            # A busy machine may have kept the other one waiting, too.
            slowest = max(stats.neighbors, key=lambda each: each.wait_s)
            assert stats.slowest_neighbor == slowest.rank
            assert stats.exposed_s > 0
            waited = sum(each.wait_s for each in stats.neighbors)
            assert waited <= stats.operations["allreduce"].duration_s
        assert fresh.exposed_s == 0.0
        assert fresh.bytes_sent == fresh.bytes_received == 0
        assert fresh.slowest_neighbor is None
        assert dict(fresh.operations) == {}


def overlap(folder: Path) -> bf.Stats:
    """Compute while an operation waits for rank 1."""
    bf.barrier()
    bf.reset_stats()
    if bf.rank() == 1:
        hear(folder, "0 waits")
        time.sleep(LATE_S)
    handle = bf.allreduce_nonblocking(torch.ones(4))
    if bf.rank() == 0:
        say_that_it_waits(folder, 1)  # not before its values are on the host
    wait_until(handle.done, "the operation has not ended")
    bf.wait(handle)
    return bf.stats()


def test_hidden_waits_count_as_waits_but_not_as_exposed(tmp_path: Path) -> None:
    first = run_ranks(2, overlap, tmp_path)[0]
    assert first.neighbors[0].wait_s >= LATE_S
    assert first.exposed_s < first.neighbors[0].wait_s


def fail_one() -> bf.OperationStats:
    """Let an operation fail, and return the counts of its kind."""
    bf.reset_stats()
    with pytest.raises(bf.CommunicationTimeout):
        bf.allreduce(torch.ones(2 + bf.rank()), name=f"{bf.rank()}", timeout_s=0.05)
    return bf.stats().operations["allreduce"]


def test_failures_are_counted() -> None:
    for counted in run_ranks(2, fail_one):
        assert (counted.calls, counted.failures) == (1, 1)


def test_the_counters_need_a_world() -> None:
    with pytest.raises(bf.NotInitializedError, match="has not been initialized"):
        bf.stats()
    with pytest.raises(bf.NotInitializedError, match="has not been initialized"):
        bf.reset_stats()
