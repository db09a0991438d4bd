"""Averages keep the bits of ranks that agree, and are rounded once."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.support.oracle import stacked
from tests.support.ranks import run_ranks

FLOAT_TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOPOLOGIES = {
    "full": bf.FullyConnectedGraph,
    "exponential": bf.ExponentialGraph,
    "ring": bf.RingGraph,
    "star": bf.StarGraph,
    "mesh": bf.MeshGrid2DGraph,
}
MOST_TERMS = 17
COUNT = 515  # items, more than a block of the kernels and no multiple of a vector


@functools.cache
def agreed(dtype: torch.dtype) -> torch.Tensor:
    """Return numbers of every magnitude, with extremes and zeros of both signs."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    limits = torch.iinfo(integer)
    generator = torch.Generator().manual_seed(dtype.itemsize)
    bits = torch.randint(limits.min, limits.max, (COUNT,), generator=generator)
    x = bits.to(integer).view(dtype)
    x[~x.isfinite()] = 1.0
    greatest, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    edges = [0.0, -0.0, greatest, -greatest, least, -least]
    x[: len(edges)] = torch.tensor(edges, dtype=dtype)
    return x


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def moved_by_static_topologies() -> list[str]:
    """Return the averages that changed a tensor on which all ranks agree."""
    moved = []
    for topology, graph in TOPOLOGIES.items():
        bf.set_topology(graph(bf.size()), is_weighted=True)
        for dtype in FLOAT_TYPES:
            x = agreed(dtype)
            handle = bf.neighbor_allreduce_nonblocking(x)
            results = {
                "blocking": bf.neighbor_allreduce(x),
                "in place": bf.neighbor_allreduce_(x.clone()),
                "nonblocking": bf.wait(handle),
            }
            moved += [
                f"{topology}, {dtype}, {form}"
                for form, result in results.items()
                if not same_bits(result, x)
            ]
    return moved


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_static_topologies_keep_agreement(world_size: int, transport: str) -> None:
    moved = run_ranks(world_size, moved_by_static_topologies, transport=transport)
    assert moved == [[]] * world_size


def average_with(
    x: torch.Tensor, weights: list[float], at_sender: bool
) -> torch.Tensor:
    """Average with as many predecessors on the ring as there are further weights."""
    me, n = bf.rank(), bf.size()
    hops = range(1, len(weights))
    at_receiver = {(me - hop) % n: 1.0 if at_sender else weights[hop] for hop in hops}
    targets = {(me + hop) % n: weights[hop] if at_sender else 1.0 for hop in hops}
    return bf.neighbor_allreduce(
        x, self_weight=weights[0], src_weights=at_receiver, dst_weights=targets
    )


def moved_by_dynamic_topologies() -> list[str]:
    """Return the averages that changed a tensor on which all ranks agree."""
    rng = np.random.default_rng(17)
    moved = []
    for terms in range(2, bf.size() + 1):
        uniform = [1 / terms] * terms
        lazy = [0.5 + 0.5 / terms, *[0.5 / terms] * (terms - 1)]
        drawn = rng.random(terms) + 0.05
        some = (drawn / drawn.sum()).tolist()
        for dtype in FLOAT_TYPES:
            x = agreed(dtype)
            for kind, weights in (("1/n", uniform), ("lazy", lazy), ("some", some)):
                for at_sender in (False, True):
                    if not same_bits(average_with(x, weights, at_sender), x):
                        moved.append(f"{terms} terms, {dtype}, {kind}, {at_sender=}")
    return moved


@pytest.mark.many_ranks
def test_dynamic_topologies_keep_agreement_for_any_number_of_terms() -> None:
    moved = run_ranks(MOST_TERMS, moved_by_dynamic_topologies)
    assert moved == [[]] * MOST_TERMS


def moved_by_schedules() -> list[str]:
    """Return the steps that changed a tensor on which all ranks agree."""
    moved = []
    steps = bf.GetDynamicOnePeerSendRecvRanks(bf.ExponentialGraph(bf.size()), bf.rank())
    for step in range(2 * bf.size()):
        targets, sources = next(steps)
        weight = 1 / (len(sources) + 1)
        for dtype in FLOAT_TYPES:
            x = agreed(dtype)
            mixed = bf.neighbor_allreduce(
                x,
                self_weight=weight,
                src_weights=dict.fromkeys(sources, weight),
                dst_weights=targets,
            )
            gossiped = x if bf.size() % 2 else bf.pair_gossip(x, bf.rank() ^ 1)
            if not (same_bits(mixed, x) and same_bits(gossiped, x)):
                moved.append(f"step {step}, {dtype}")
    return moved


@pytest.mark.parametrize("world_size", [3, 6])
def test_one_peer_schedules_keep_agreement(world_size: int) -> None:
    assert run_ranks(world_size, moved_by_schedules) == [[]] * world_size


def average_all(dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the average of all ranks, and what 100 further rounds make of it."""
    bf.set_topology(bf.FullyConnectedGraph(bf.size()))
    once = bf.neighbor_allreduce(stacked((COUNT,), bf.size(), dtype)[bf.rank()])
    often = once
    for _ in range(100):
        often = bf.neighbor_allreduce(often)
    return [once, often]


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("world_size", [3, 7])
def test_no_number_is_closer_to_the_exact_average(
    world_size: int, dtype: torch.dtype
) -> None:
    columns = stacked((COUNT,), world_size, dtype).double().T.tolist()
    exact = [Fraction(sum(map(Fraction, column)), world_size) for column in columns]
    # float() rounds a fraction correctly, and the second rounding meets no tie here.
    rounded = torch.tensor([float(each) for each in exact], dtype=torch.float64)
    closest = rounded.to(dtype).tolist()
    for once, often in run_ranks(world_size, average_all, dtype):
        assert same_bits(once, often)
        # Half way between two numbers, both are closest.
        for got, best, average in zip(once.tolist(), closest, exact, strict=True):
            assert abs(Fraction(got) - average) <= abs(Fraction(best) - average)
