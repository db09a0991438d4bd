"""Every argument that lists ranks accepts any iterable of integers."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

FORMS = {
    "array": np.array,
    "int8": lambda ranks: np.array(ranks, dtype=np.int8),
    "tensor": torch.tensor,
    "set": set,
    "tuple": tuple,
    "keys": lambda ranks: dict.fromkeys(ranks).keys(),
    "iterator": iter,
    "numpy integers": lambda ranks: [np.int64(rank) for rank in ranks],
}


def list_everywhere():
    """Name the other two of three ranks in each form."""
    me = bf.rank()
    others = [rank for rank in range(3) if rank != me]
    x = torch.full((1,), float(me))
    total = 3.0
    for form in FORMS.values():
        got = bf.neighbor_allgather(x, src_ranks=form(others), dst_ranks=form(others))
        assert got.tolist() == [float(rank) for rank in others]
        got = bf.neighbor_allreduce(
            x,
            self_weight=1.0,
            src_weights=dict.fromkeys(others, 1.0),
            dst_weights=form(others),
        )
        assert got.item() == total
        assert bf.InferSourceFromDestinationRanks(form(others)) == others
        members = bf.ProcessSet(form([0, 2]))
        assert members.ranks == (0, 2)
        model = nn.Linear(1, 1)
        for rounds in (
            lambda _, form=form: (form(others), form(others)),
            itertools.cycle([np.array([others, others])]),
        ):
            optimizer = bf.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model,
                algorithm="neighbor_allreduce",
                topology=rounds,
            )
            optimizer.step()
        optimizer = bf.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model,
            algorithm="neighbor_allreduce",
        )
        optimizer.self_weight, optimizer.src_weights = 0.5, dict.fromkeys(others, 0.25)
        optimizer.dst_weights = form(others)
        for _ in range(2):
            optimizer.step()
        optimizer.synchronize()
    bf.win_create(x, "x", zero_init=True)
    for form in FORMS.values():
        bf.win_put(x, "x", dst_weights=form(others))
        with bf.win_mutex("x", ranks=form(others)):
            pass
    bf.barrier()
    bf.win_free("x")
    got, _ = bf.alltoall(x.repeat(3), splits=np.ones(3, dtype=int))
    assert got.tolist() == [0.0, 1.0, 2.0]


def test_lists_of_ranks():
    run_ranks(3, list_everywhere)


def misuse():
    x = torch.ones(2)
    with pytest.raises(
        TypeError, match=r"neighbor_allgather: src_ranks must be a list of ranks, got 1"
    ):
        bf.neighbor_allgather(x, src_ranks=1, dst_ranks=[1])
    with pytest.raises(
        TypeError, match=r"neighbor_allgather: each of dst_ranks must be"
    ):
        bf.neighbor_allgather(x, src_ranks=[], dst_ranks=[0.5])
    with pytest.raises(ValueError, match=r"dst_ranks must not contain rank 0 itself"):
        bf.neighbor_allgather(x, src_ranks=[], dst_ranks=[0])
    with pytest.raises(TypeError, match=r"dst_weights must be a list of ranks, got 0"):
        bf.neighbor_allreduce(x, self_weight=1.0, src_weights={}, dst_weights=0)
    with pytest.raises(ValueError, match=r"src_weights must be a dict that maps ranks"):
        bf.neighbor_allreduce(x, self_weight=1.0, src_weights=[1], dst_weights=[])
    with pytest.raises(TypeError, match="the ranks of a process set must be a list"):
        bf.ProcessSet("0")
    with pytest.raises(
        TypeError, match="each of the ranks of a process set must be an"
    ):
        bf.ProcessSet([0.0])
    with pytest.raises(TypeError, match="src_ranks of rank 0 must be a list of ranks"):
        bf.InferDestinationFromSourceRanks(3)
    with pytest.raises(ValueError, match="splits must be integers"):
        bf.alltoall(x, splits=np.array([2.0]))
    bf.win_create(x, "x")
    mutex = bf.win_mutex("x", ranks=0)
    with pytest.raises(TypeError, match="win_mutex: ranks must be a list of ranks"):
        mutex.__enter__()


def test_other_values():
    run_ranks(1, misuse)


def test_shapes_of_grids():
    for shape in (np.array([2, 3]), (2, 3), iter([2, 3])):
        graph = bf.MeshGrid2DGraph(6, shape)
        assert bf.IsTopologyEquivalent(graph, bf.MeshGrid2DGraph(6, [2, 3]))
