"""One rank refuses a call that the others make, and all of them go on in step."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
import bluecomm.compat.horovod as hvd
from bluecomm.errors import MismatchError
from bluecomm.runtime import current_communicator
from tests.support.deadlines import DEADLINE_S
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.faults

RANKS = 3
COMPLEX = torch.ones(3, dtype=torch.complex64)


def full(value, *shape, dtype=torch.float32):
    return torch.full(shape or (6,), value, dtype=dtype)


def pair():
    return 1 - bf.rank()


def leaf():
    return torch.ones(6, requires_grad=True)


def sparse(value):
    return torch.eye(3).mul(value).to_sparse()


def some():
    """The same process set on each call, of ranks 0 and 1."""
    comm = current_communicator()
    if not hasattr(comm, "some"):
        comm.some = bf.ProcessSet([0, 1])
    return comm.some


def dynamic(tensor, **options):
    others = [rank for rank in range(bf.size()) if rank != bf.rank()]
    weights = {"self_weight": 0.5, "dst_weights": others}
    weights["src_weights"] = dict.fromkeys(others, 0.25)
    return bf.neighbor_allreduce(tensor, **{**weights, **options})


def unpicklable():
    return lambda: None


# The refused call of rank 1, and the call of the others with a value, whose result is
# in proportion to the value.
CASES = {
    "type": (lambda: bf.allreduce(COMPLEX), lambda v: bf.allreduce(full(v))),
    "no tensor": (lambda: bf.allreduce([1.0]), lambda v: bf.allreduce(full(v))),
    "unknown argument": (
        lambda: bf.allreduce_(full(1.0), averag=True),
        lambda v: bf.allreduce_(full(v)),
    ),
    "missing argument": (
        lambda: bf.allreduce_(),
        lambda v: bf.allreduce_(full(v)),
    ),
    "average and op": (
        lambda: bf.allreduce(full(1.0), True, op=bf.Sum),
        lambda v: bf.allreduce(full(v)),
    ),
    "compression": (
        lambda: bf.allreduce(full(1.0), compression=7),
        lambda v: bf.allreduce(full(v)),
    ),
    "leaf": (lambda: bf.allreduce_(leaf()), lambda v: bf.allreduce_(full(v))),
    "no adjoint": (
        lambda: bf.allreduce(leaf(), op=bf.Adasum),
        lambda v: bf.allreduce(full(v), op=bf.Adasum),
    ),
    "timeout": (
        lambda: bf.allreduce(full(1.0), timeout_s=-1.0),
        lambda v: bf.allreduce(full(v)),
    ),
    "nonblocking": (
        lambda: bf.allreduce_nonblocking(COMPLEX),
        lambda v: bf.allreduce_nonblocking(full(v)).wait(),
    ),
    "named": (
        lambda: bf.allreduce(COMPLEX, name="x"),
        lambda v: bf.allreduce(full(v), name="x"),
    ),
    "named in the third place": (
        lambda: bf.allreduce_(full(1.0), None, "x", op=17),
        lambda v: bf.allreduce_(full(v), None, "x"),
    ),
    "large": (
        lambda: bf.allreduce(COMPLEX, name="x"),
        lambda v: bf.allreduce(full(v, 1 << 20), name="x"),
    ),
    "root": (
        lambda: bf.broadcast(full(1.0), 17),
        lambda v: bf.broadcast(full(v), 0),
    ),
    "broadcast of another root": (
        lambda: bf.broadcast(COMPLEX, 2),
        lambda v: bf.broadcast(full(v), 2),
    ),
    "allgather": (
        lambda: bf.allgather(torch.tensor(1.0)),
        lambda v: bf.allgather(full(v)),
    ),
    "alltoall": (
        lambda: bf.alltoall(full(1.0), [1, 2, 4]),
        lambda v: bf.alltoall(full(v)),
    ),
    "reducescatter": (
        lambda: bf.reducescatter(torch.tensor(1.0)),
        lambda v: bf.reducescatter(full(v)),
    ),
    "barrier": (lambda: bf.barrier(timeout_s=0), lambda v: bf.barrier()),
    "neighbor_allreduce": (
        lambda: bf.neighbor_allreduce(full(1, dtype=torch.int32)),
        lambda v: bf.neighbor_allreduce(full(v)),
    ),
    "weights": (
        lambda: bf.neighbor_allreduce(full(1.0), self_weight=1.0),
        lambda v: bf.neighbor_allreduce(full(v)),
    ),
    "dynamic weights": (
        lambda: dynamic(full(1.0), self_weight=float("nan")),
        lambda v: dynamic(full(v)),
    ),
    "unchecked weights": (
        lambda: dynamic(full(1.0), self_weight=None, enable_topo_check=False),
        lambda v: dynamic(full(v), enable_topo_check=False),
    ),
    "checked type": (lambda: dynamic(COMPLEX), lambda v: dynamic(full(v))),
    "neighbor_allgather": (
        lambda: bf.neighbor_allgather(full(1.0), src_ranks=[0]),
        lambda v: bf.neighbor_allgather(full(v)),
    ),
    "hierarchical_neighbor_allreduce": (
        lambda: bf.hierarchical_neighbor_allreduce(full(1, dtype=torch.int32)),
        lambda v: bf.hierarchical_neighbor_allreduce(full(v)),
    ),
    "sparse_allreduce": (
        lambda: bf.sparse_allreduce(full(1.0)),
        lambda v: bf.sparse_allreduce(sparse(v)).to_dense(),
    ),
    "member of a group": (
        lambda: bf.grouped_allreduce([full(1.0), COMPLEX, full(1.0)]),
        lambda v: torch.stack(bf.grouped_allreduce([full(v)] * 3)),
    ),
    "member of a named group": (
        lambda: bf.grouped_allgather([full(1.0), None, full(1.0)], "x"),
        lambda v: torch.stack(bf.grouped_allgather([full(v)] * 3, "x")),
    ),
    "arguments of a group": (
        lambda: bf.grouped_reducescatter([full(1.0)] * 2, opp=bf.Sum),
        lambda v: torch.stack(bf.grouped_reducescatter([full(v)] * 2)),
    ),
    "broadcast_object": (
        lambda: bf.broadcast_object(unpicklable(), 1),
        lambda v: torch.tensor(bf.broadcast_object(v, 1)),
    ),
    "allgather_object": (
        lambda: bf.allgather_object(unpicklable()),
        lambda v: torch.tensor(bf.allgather_object(v)),
    ),
    "inferred ranks": (
        lambda: bf.InferSourceFromDestinationRanks([17]),
        lambda v: v * torch.tensor(bf.InferSourceFromDestinationRanks([])).sum(),
    ),
    "win_create": (
        lambda: bf.win_create(COMPLEX, "w"),
        lambda v: bf.win_create(full(v), f"w{v}") and None,
    ),
    "horovod's group": (
        lambda: hvd.grouped_allreduce([full(1.0), COMPLEX]),
        lambda v: torch.stack(hvd.grouped_allreduce([full(v)] * 2)),
    ),
}

# Rank 2 takes no part in these.
CASES_OF_TWO = {
    "process set": (
        lambda: bf.allreduce(COMPLEX, process_set=some()),
        lambda v: bf.allreduce(full(v), process_set=some()),
    ),
    "pair": (
        lambda: bf.pair_gossip(full(1, dtype=torch.int32), pair()),
        lambda v: bf.pair_gossip(full(v), pair()),
    ),
    "named pair": (
        lambda: bf.pair_gossip(COMPLEX, pair(), name="x"),
        lambda v: bf.pair_gossip(full(v), pair(), name="x"),
    ),
}


def _refuse(case):
    """Return the outcomes of the call that rank 1 refuses and of agreed calls."""
    bad, good = {**CASES, **CASES_OF_TWO}[case]
    if case in CASES_OF_TWO:
        some()
        if bf.rank() == 2:
            return outcome_of(lambda: None), [outcome_of(bf.barrier)]
    first = outcome_of(bad if bf.rank() == 1 else lambda: good(1.0))
    agreed = [outcome_of(lambda v=v: good(v)) for v in (1.0, 2.0, 3.0, 4.0)]
    return first, [*agreed, outcome_of(bf.barrier)]


@pytest.mark.parametrize("case", [*CASES, *CASES_OF_TWO])
def test_the_others_learn_why_and_all_go_on_in_step(case):
    outcomes = run_ranks(RANKS, _refuse, case)
    for rank, (first, agreed) in enumerate(outcomes):
        failed = [one for one in (first, *agreed) if one.error]
        if case in CASES_OF_TWO and rank == 2:
            assert not failed
            continue
        assert len(failed) == 1, failed
        (error,) = (one.error for one in failed)
        if rank == 1:
            assert error is first.error
            assert not isinstance(error, MismatchError)
        else:
            assert isinstance(error, MismatchError)
            why = outcomes[1][0].error
            assert "rank 1 (host0) refused its call: " in failed[0].text
            assert f"{type(why).__name__}: {why}" in failed[0].text
            assert error.peers == (1,)
            assert failed[0].seconds < DEADLINE_S
        unit = next((one.result for one in agreed if one.result is not None), None)
        if unit is None:
            continue
        start = 1.0 if agreed[0].error is None else 2.0
        for value, one in enumerate(agreed[:-1], start=1):
            if one.error is None:
                torch.testing.assert_close(one.result, unit * (value / start))


def _refuse_alike(rounds):
    texts = set()
    for _ in range(rounds):
        for bad, _ in CASES.values():
            if bad is not CASES["broadcast_object"][0]:
                texts.add(type(outcome_of(bad).error))
    agreed = [float(bf.allreduce(full(float(v)))[0]) for v in range(4)]
    engine = current_communicator().world.engine
    return texts, agreed, engine.pending(), engine.take_late_failure()


def test_nothing_is_left_of_a_call_that_all_ranks_refuse():
    for errors, agreed, pending, late in run_ranks(RANKS, _refuse_alike, 5):
        # Nobody waited, so nobody has heard of the others' refusals.
        assert None not in errors
        assert agreed == [0.0, 1.0, 2.0, 3.0]
        assert pending == []
        assert late is None
