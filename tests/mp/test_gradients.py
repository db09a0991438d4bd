"""Gradients of operations against central differences of the ranks' joint function.

The function maps the inputs of all ranks to the sum of all ranks' losses. One input of
one rank is changed at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS = 4
# Machines of three ranks and one.
RANKS_PER_MACHINE = 3
STEP = 1e-5

Operation = Callable[[torch.Tensor], torch.Tensor]


def directed_graph() -> nx.DiGraph[int]:
    """Return a graph whose weights are one-sided and neither sum to 1."""
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(
        [(0, 1, 0.3), (1, 2, 0.9), (2, 0, -0.4), (0, 3, 1.1), (2, 3, 0.25)]
    )
    graph.add_weighted_edges_from([(0, 0, 0.5), (1, 1, 0.2), (2, 2, -0.7), (3, 3, 1.3)])
    return graph


def rows_of(rank: int) -> int:
    return (2, 0, 3, 1)[rank]


def dynamic_weights() -> dict[str, Any]:
    """Return weights that are applied half by the sender, half by the receiver."""
    me, edges = bf.rank(), {(0, 1): 0.3, (1, 3): -0.9, (3, 1): 0.4, (3, 0): 1.7}
    return {
        "self_weight": 0.1 + me,
        "src_weights": {i: w for (i, j), w in edges.items() if j == me},
        "dst_weights": {j: 0.5 + w for (i, j), w in edges.items() if i == me},
    }


def machine_weights() -> dict[str, Any]:
    me = bf.machine_rank()
    return {
        "self_weight": 0.3 + me,
        "src_machine_weights": {1: 0.7} if me == 0 else {0: -0.2},
        "dst_machine_weights": {1: 1.5} if me == 0 else {0: 0.4},
    }


def some_ranks(operation: Callable[..., torch.Tensor]) -> Operation:
    """Return the operation among ranks 1 and 3; the others do not take part."""

    def call(x: torch.Tensor) -> torch.Tensor:
        group = bf.ProcessSet([1, 3])
        return operation(x, process_set=group) if bf.rank() in (1, 3) else x * 2

    return call


def split(x: torch.Tensor) -> torch.Tensor:
    counts = [(bf.rank() + to) % 2 for to in range(bf.size())]
    received, rows = bf.alltoall(x, splits=counts)
    assert int(rows.sum()) == received.shape[0]
    return received


def partners(x: torch.Tensor) -> torch.Tensor:
    other = bf.rank() ^ 1
    return bf.pair_gossip(x, other, self_weight=0.3, pair_weight=1.0 + bf.rank())


def written(operation: Callable[..., torch.Tensor]) -> Operation:
    """Return the operation in place, on a tensor that is not a leaf."""

    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        operation(y)
        return y

    return call


def waited(start: Callable[..., bf.Handle[torch.Tensor]]) -> Operation:
    def call(x: torch.Tensor) -> torch.Tensor:
        handle = start(x)
        with torch.no_grad():  # the mode at the start counts
            return bf.synchronize(handle)

    return call


def gathered_from(x: torch.Tensor) -> torch.Tensor:
    """Gather from chosen ranks, in an order that is not theirs."""
    sources = {0: [3, 1], 1: [0], 2: [], 3: [2, 0]}
    targets = [to for to, ranks in sources.items() if bf.rank() in ranks]
    return bf.neighbor_allgather(x, src_ranks=sources[bf.rank()], dst_ranks=targets)


def several(x: torch.Tensor) -> torch.Tensor:
    sums = bf.grouped_allreduce([x, x * x], average=False, name="group")
    return torch.cat(sums)


def repeated(x: torch.Tensor) -> torch.Tensor:
    """Use one name twice, the second time on the first result."""
    for _ in range(2):
        x = bf.neighbor_allreduce(x, name="twice")
    return x


PAIR, ROWS, EVEN = (2,), (None, 2), (RANKS + 1, 1)
CASES: dict[str, tuple[Any, Any]] = {
    "average": (bf.allreduce, PAIR),
    "sum with factors": (
        functools.partial(
            bf.allreduce, average=False, prescale_factor=0.5, postscale_factor=3.0
        ),
        PAIR,
    ),
    "scalar": (bf.allreduce, ()),
    "inside a machine": (
        functools.partial(bf.allreduce, is_hierarchical_local=True),
        PAIR,
    ),
    "max": (functools.partial(bf.allreduce, op=bf.Max), PAIR),
    "negative min": (
        functools.partial(bf.allreduce, op=bf.Min, prescale_factor=-2.0),
        PAIR,
    ),
    "product": (functools.partial(bf.allreduce, op=bf.Product), PAIR),
    "local product": (
        functools.partial(bf.allreduce, op=bf.Product, is_hierarchical_local=True),
        PAIR,
    ),
    "allreduce_": (written(bf.allreduce_), PAIR),
    "some ranks": (some_ranks(bf.allreduce), PAIR),
    "grouped": (several, PAIR),
    "allgather of uneven rows": (bf.allgather, ROWS),
    "allgather of even rows": (waited(bf.allgather_nonblocking), PAIR),
    "allgather of some ranks": (some_ranks(bf.allgather), ROWS),
    "broadcast": (functools.partial(bf.broadcast, root_rank=2), PAIR),
    "broadcast_": (written(functools.partial(bf.broadcast_, root_rank=2)), PAIR),
    "broadcast among some": (
        some_ranks(functools.partial(bf.broadcast, root_rank=3)),
        PAIR,
    ),
    "alltoall": (bf.alltoall, (RANKS, 1)),
    "alltoall of splits": (split, (RANKS // 2, 1)),
    "reduce": (functools.partial(bf.reduce, root_rank=1, prescale_factor=2.0), PAIR),
    "reduce sum among some": (
        some_ranks(functools.partial(bf.reduce, root_rank=3, op=bf.Sum)),
        PAIR,
    ),
    "gather of uneven rows": (functools.partial(bf.gather, root_rank=2), ROWS),
    "reducescatter": (bf.reducescatter, EVEN),
    "reducescatter of splits": (
        functools.partial(bf.reducescatter, splits=[2, 0, 3, 0]),
        EVEN,
    ),
    "reducescatter sum": (functools.partial(bf.reducescatter, op=bf.Sum), EVEN),
    "neighbor_allreduce": (bf.neighbor_allreduce, PAIR),
    "neighbor_allreduce_nonblocking_": (
        written(lambda y: bf.wait(bf.neighbor_allreduce_nonblocking_(y))),
        PAIR,
    ),
    "dynamic": (lambda x: bf.neighbor_allreduce(x, **dynamic_weights()), PAIR),
    "one name twice": (repeated, PAIR),
    "neighbor_allgather": (bf.neighbor_allgather, ROWS),
    "neighbor_allgather of ranks": (gathered_from, ROWS),
    "machines": (
        lambda x: bf.hierarchical_neighbor_allreduce(x, **machine_weights()),
        PAIR,
    ),
    "pair_gossip": (partners, PAIR),
    # Also of a rank without rows.
    "SyncBatchNorm": (lambda x: bf.SyncBatchNorm(2).double()(x), ROWS),
}


class Point:
    """This rank's input of a case, and fixed random numbers for its loss."""

    def __init__(self, case: str, rank: int) -> None:
        self.operation, shape = CASES[case]
        shape = tuple(rows_of(rank) if rows is None else rows for rows in shape)
        self._random = np.random.default_rng([rank, *case.encode()])
        self.x = torch.tensor(self._random.standard_normal(shape))
        self.direction = torch.tensor(self._random.standard_normal(shape))

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        y = self.operation(x)
        return (y.sin() * torch.linspace(0.5, 2.0, y.numel()).view(y.shape)).sum()

    def slope(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the derivative along the ranks' directions."""
        (gradient,) = torch.autograd.grad(self.loss(x), x, create_graph=True)
        return (gradient * self.direction).sum()


def gradients() -> dict[str, tuple[list[Any], list[list[float]]]]:
    """Return gradients of both functions, and their values at all changed inputs."""
    bf.set_topology(directed_graph(), is_weighted=True)
    found: dict[str, tuple[list[Any], list[list[float]]]] = {}
    for case in CASES:
        mine = Point(case, bf.rank())
        exact: list[Any] = []
        values: list[list[float]] = []
        for function in (mine.loss, mine.slope):
            x = mine.x.clone().requires_grad_()
            function(x).backward()
            exact.append(x.grad)
            values.append([])
            for rank in range(bf.size()):
                for element in range(Point(case, rank).x.numel()):
                    for step in (STEP, -STEP):
                        x = mine.x.clone()
                        if rank == bf.rank():
                            x.view(-1)[element] += step
                        values[-1].append(function(x.requires_grad_()).item())
        found[case] = (exact, values)
    return found


@functools.cache
def found() -> list[dict[str, tuple[list[Any], list[list[float]]]]]:
    return run_ranks(RANKS, gradients, ranks_per_machine=RANKS_PER_MACHINE)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_joint_function(case: str, order: int) -> None:
    exact = torch.cat([of_rank[case][0][order - 1].view(-1) for of_rank in found()])
    values = [of_rank[case][1][order - 1] for of_rank in found()]
    joint = torch.tensor(values, dtype=torch.float64).sum(0)
    above, below = joint.view(-1, 2).unbind(1)
    numeric = (above - below) / (2 * STEP)
    torch.testing.assert_close(exact, numeric, rtol=1e-6, atol=1e-7)
    assert exact.abs().max() > 0.01
