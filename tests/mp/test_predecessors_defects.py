"""Defects of BlueFog (crashes, hangs, wrong results) not tested elsewhere."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 4


def average_many_at_a_center() -> list[float]:
    """Average 40 tensors at once; the center receives three times as many."""
    bf.set_topology(bf.StarGraph(bf.size(), center_rank=1), is_weighted=True)
    handles = [
        bf.neighbor_allreduce_nonblocking(
            torch.full((100_000,), float(bf.rank() + number)), name=f"x{number}"
        )
        for number in range(40)
    ]
    return [float(bf.wait(handle).max()) for handle in handles]


def test_one_rank_may_receive_more_than_the_others() -> None:
    """BlueFog used the degree of rank 0 for all ranks."""
    matrix = torch.tensor(bf.mixing_matrix(bf.StarGraph(RANKS, center_rank=1)))
    expected = matrix @ torch.arange(float(RANKS)).double()
    for rank, found in enumerate(run_ranks(RANKS, average_many_at_a_center)):
        wanted = [float(expected[rank]) + number for number in range(40)]
        assert found == pytest.approx(wanted, rel=1e-6)


def send_to_one_and_the_other() -> list[list[float]]:
    """Send two tensors whose neighbors are equal on rank 0 and differ on others."""
    handles = []
    for name, target in (("a", 2), ("b", 3)):
        is_source, is_target = bf.rank() == 1, bf.rank() == target
        handles.append(
            bf.neighbor_allreduce_nonblocking(
                torch.full((10,), float(bf.rank())),
                name=name,
                self_weight=0.5 if is_target else 1.0,
                src_weights={1: 0.5} if is_target else {},
                dst_weights=[target] if is_source else [],
            )
        )
    return [bf.wait(handle).unique().tolist() for handle in handles]


def test_neighbors_may_differ_from_tensor_to_tensor() -> None:
    got = run_ranks(RANKS, send_to_one_and_the_other)
    assert got == [[[0.0], [0.0]], [[1.0], [1.0]], [[1.5], [2.0]], [[3.0], [2.0]]]


def use_a_name_twice() -> list[float]:
    handles = [
        bf.allreduce_nonblocking(torch.tensor(float(bf.rank() * ten)), name="twice")
        for ten in (1, 10)
    ]
    return [float(bf.wait(handle)) for handle in handles]


def test_a_name_in_flight_is_queued() -> None:
    assert run_ranks(RANKS, use_a_name_twice) == [[1.5, 15.0]] * RANKS


def weigh_and_not() -> list[float]:
    graph = bf.StarGraph(bf.size())
    found = []
    for is_weighted in (False, True, False):
        assert bf.set_topology(graph, is_weighted=is_weighted)
        found.append(float(bf.neighbor_allreduce(torch.tensor(float(bf.rank())))))
    return found


def test_the_same_graph_may_become_weighted() -> None:
    # Rank 3 receives from the center, 0: with weight 1/2, or with the graph's weight.
    assert run_ranks(RANKS, weigh_and_not)[3] == pytest.approx([1.5, 2.25, 1.5])


def average_machines_in_16_bits() -> torch.Tensor:
    other = 1 - bf.machine_rank()
    return bf.hierarchical_neighbor_allreduce(
        torch.full((1000,), float(bf.rank()), dtype=torch.float16),
        self_weight=0.25,
        src_machine_weights={other: 0.5},
        dst_machine_weights={other: 1.5},
    )


def test_machines_average_in_16_bits() -> None:
    got = run_ranks(RANKS, average_machines_in_16_bits, ranks_per_machine=2)
    for rank, found in enumerate(got):
        own, other = (0.5, 2.5) if rank < 2 else (2.5, 0.5)
        assert found.dtype == torch.float16
        assert found.unique().tolist() == [0.25 * own + 0.5 * 1.5 * other]
