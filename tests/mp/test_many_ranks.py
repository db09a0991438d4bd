"""A rank's resources grow with its neighbors, not with the number of ranks."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime.stats import EdgeStats
from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.mp, pytest.mark.many_ranks]

MIB = 1 << 20
ENGINE_LIMIT_MIB = 32


class MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def held_mib() -> float:
    """Return the memory that this process has allocated, with its shared memory."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = MallocInfo
    heap = library.mallinfo2()
    fields = dict(
        line.split(":", 1)
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    )
    shared_kib = int(fields["Pss_Shmem"].split()[0])
    return float(heap.uordblks + heap.hblkhd) / MIB + shared_kib / 1024


def exchange() -> tuple[set[int], set[int], int, float]:
    """Return the ranks sent to and received from, and the new descriptors and MiB."""
    bf.set_topology(bf.ExponentialTwoGraph(bf.size()))
    x = torch.full((MIB // 4,), float(bf.rank()))
    fds, memory = len(os.listdir("/proc/self/fd")), held_mib()
    y = bf.neighbor_allreduce(x, name="x")
    neighbors = bf.in_neighbor_ranks()
    expected = (bf.rank() + sum(neighbors)) / (len(neighbors) + 1)
    torch.testing.assert_close(y, torch.full_like(x, expected))
    grown = held_mib() - memory
    opened = len(os.listdir("/proc/self/fd")) - fds
    edges = {
        peer.rank: peer.operations.get("neighbor_allreduce", EdgeStats())
        for peer in bf.stats().neighbors
    }
    sent_to = {rank for rank, edge in edges.items() if edge.messages_sent}
    received_from = {rank for rank, edge in edges.items() if edge.messages_received}
    return sent_to, received_from, opened, grown


def test_64_ranks_on_the_exponential_graph() -> None:
    distances = [1, 2, 4, 8, 16, 32]
    results = run_ranks(64, exchange)
    for rank, (sent_to, received_from, opened, grown) in enumerate(results):
        assert sent_to == {(rank + d) % 64 for d in distances}
        assert received_from == {(rank - d) % 64 for d in distances}
        assert opened <= 2 * len(sent_to | received_from)
        assert grown <= ENGINE_LIMIT_MIB


def put_and_collect() -> tuple[float, list[float], int]:
    """Return two sums over a second window, and the new descriptors."""
    bf.set_topology(bf.ExponentialTwoGraph(bf.size()))
    x = torch.full((1000,), float(bf.rank()))
    bf.win_create(x, "first")
    bf.win_free("first")
    bf.barrier()
    fds = len(os.listdir("/proc/self/fd"))
    bf.win_create(x, "x", zero_init=True)
    bf.win_put(x.clone(), "x")
    bf.barrier()
    collected = float(bf.win_update_then_collect("x")[-1])
    bf.barrier()
    bf.win_get("x")
    bf.barrier()
    ones = dict.fromkeys(bf.in_neighbor_ranks(), 1.0)
    bf.win_update("x", self_weight=0.0, neighbor_weights=ones)
    opened = len(os.listdir("/proc/self/fd")) - fds
    got = x[:2].tolist()
    with bf.win_mutex("x", ranks=[0]):
        pass
    bf.win_free("x")
    return collected, got, opened


def test_windows_of_64_ranks() -> None:
    neighbors = [[(rank - d) % 64 for d in (1, 2, 4, 8, 16, 32)] for rank in range(64)]
    sums = [float(rank + sum(neighbors[rank])) for rank in range(64)]
    for rank, (collected, got, opened) in enumerate(run_ranks(64, put_and_collect)):
        assert collected == sums[rank]
        assert got == [sum(sums[each] for each in neighbors[rank])] * 2
        assert opened == 0
