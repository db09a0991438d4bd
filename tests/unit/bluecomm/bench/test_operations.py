"""Bus bandwidth, cases and neighbors, compared with the operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bluecomm as bf
from bluecomm.bench.operations import (
    OPERATIONS,
    bus_bandwidth,
    case_of,
    exchange_of,
    exponential_hops,
    weighted_sum,
)

ONE_MACHINE_OF_4 = [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "layout", "gb_per_s"),
    [
        # 1 GB in 1 s.
        ("allreduce_", [0, 0], 1.0),
        ("allreduce", ONE_MACHINE_OF_4, 1.5),
        ("allgather", ONE_MACHINE_OF_4, 0.75),
        ("alltoall", ONE_MACHINE_OF_4, 0.75),
        ("broadcast_", ONE_MACHINE_OF_4, 1.0),
        ("pair_gossip", ONE_MACHINE_OF_4, 1.0),
        ("one_peer_", ONE_MACHINE_OF_4, 1.0),
        ("neighbor_allreduce", ONE_MACHINE_OF_4, 2.0),
        ("neighbor_allreduce_", [0] * 5, 3.0),
        # An allreduce among 2 ranks, and half of the tensor from the other machine.
        ("hierarchical_neighbor_allreduce", [0, 0, 1, 1], 1.5),
    ],
)
def test_bus_bandwidth(name: str, layout: list[int], gb_per_s: float) -> None:
    found = bus_bandwidth(OPERATIONS[name], 10**9, 1e6, layout)
    assert found == pytest.approx(gb_per_s)


def test_a_trailing_underscore_means_in_place() -> None:
    in_place = {name for name, operation in OPERATIONS.items() if operation.in_place}
    assert in_place == {"allreduce_", "neighbor_allreduce_", "one_peer_", "broadcast_"}
    assert OPERATIONS["one_peer_"].kind == OPERATIONS["one_peer"].kind == "one_peer"


@pytest.mark.parametrize(
    ("name", "dtype", "nbytes", "count"),
    [
        ("allreduce", torch.float32, 4, 1),
        ("allreduce", torch.float64, 4, 1),
        ("allreduce", torch.float16, 1 << 20, 1 << 19),
        ("allgather", torch.float32, 4, 3),
        ("alltoall", torch.float32, 1 << 10, 255),
    ],
)
def test_cases_have_whole_blocks(
    name: str, dtype: torch.dtype, nbytes: int, count: int
) -> None:
    case = case_of(OPERATIONS[name], dtype, nbytes, 3)
    assert case.count == count
    assert case.nbytes == count * dtype.itemsize
    assert f"torch.{case.dtype_name}" == str(dtype)


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("kind", ["neighbor_allreduce", "one_peer"])
def test_exchanges_follow_the_topology(kind: str, world_size: int) -> None:
    if kind == "one_peer":
        graph = bf.RingGraph(world_size, connect_style=2)
    else:
        graph = bf.ExponentialTwoGraph(world_size)
    found = np.zeros((world_size, world_size))
    for rank in range(world_size):
        exchange = exchange_of(kind, rank, world_size)
        assert exchange is not None
        found[rank, rank] = exchange.self_weight
        for source, weight in exchange.sources.items():
            found[rank, source] = weight
        assert sorted(exchange.destinations) == sorted(
            r for r in graph.successors(rank) if r != rank
        )
    np.testing.assert_allclose(found, bf.mixing_matrix(graph))


def test_pairs() -> None:
    exchange = exchange_of("pair_gossip", 3, 5)
    assert exchange is not None
    assert (exchange.sources, exchange.destinations) == ({2: 0.5}, (2,))
    assert exchange_of("pair_gossip", 4, 5) is None


def test_other_kinds_have_no_neighbors() -> None:
    with pytest.raises(ValueError, match="no operation with neighbors: 'alltoall'"):
        exchange_of("alltoall", 0, 2)


@pytest.mark.parametrize(
    ("world_size", "hops"), [(1, []), (2, [1]), (3, [1, 2]), (8, [1, 2, 4])]
)
def test_hops(world_size: int, hops: list[int]) -> None:
    assert exponential_hops(world_size) == hops


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("world_size", [2, 8])
def test_the_weighted_sum_of_the_peers(world_size: int, in_place: bool) -> None:
    exchange = exchange_of("neighbor_allreduce", 0, world_size)
    assert exchange is not None
    own = torch.randn(10)
    received = [torch.randn(10) for _ in exchange.sources]
    expected = exchange.self_weight * own + sum(
        weight * tensor
        for weight, tensor in zip(exchange.sources.values(), received, strict=True)
    )
    output = own if in_place else torch.empty(10)
    weighted_sum(own, received, exchange, output)
    torch.testing.assert_close(output, expected)
