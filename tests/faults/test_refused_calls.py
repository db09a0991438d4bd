"""One rank refuses a call that the others make, and all of them go on in step."""

from __future__ import annotations

import signal
import threading

import pytest
import torch

import bluecomm as bf
import bluecomm.compat.horovod as hvd
from bluecomm.errors import MismatchError
from bluecomm.runtime import current_communicator
from tests.support.deadlines import DEADLINE_S, hear, say
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.faults

RANKS = 3
# No operation supports this type.
UNKNOWN = torch.ones(3).to(torch.float8_e8m0fnu)


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


def optimize(values, **options):
    """Give values to a distributed optimizer and return them."""
    parameter = torch.nn.Parameter(values)
    bf.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), **options)
    return parameter.detach()


def unpicklable():
    return lambda: None


# The refused call of rank 1, and the call of the others with a value, whose result is
# in proportion to the value.
CASES = {
    "type": (lambda: bf.allreduce(UNKNOWN), lambda v: bf.allreduce(full(v))),
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
        lambda: bf.allreduce_nonblocking(UNKNOWN),
        lambda v: bf.allreduce_nonblocking(full(v)).wait(),
    ),
    "named": (
        lambda: bf.allreduce(UNKNOWN, name="x"),
        lambda v: bf.allreduce(full(v), name="x"),
    ),
    "named in the third place": (
        lambda: bf.allreduce_(full(1.0), None, "x", op=17),
        lambda v: bf.allreduce_(full(v), None, "x"),
    ),
    "large": (
        lambda: bf.allreduce(UNKNOWN, name="x"),
        lambda v: bf.allreduce(full(v, 1 << 20), name="x"),
    ),
    "root": (
        lambda: bf.broadcast(full(1.0), 17),
        lambda v: bf.broadcast(full(v), 0),
    ),
    "broadcast of another root": (
        lambda: bf.broadcast(UNKNOWN, 2),
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
    "checked type": (lambda: dynamic(UNKNOWN), lambda v: dynamic(full(v))),
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
        lambda: bf.grouped_allreduce([full(1.0), UNKNOWN, full(1.0)]),
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
        lambda: bf.win_create(UNKNOWN, "w"),
        lambda v: bf.win_create(full(v), f"w{v}") and None,
    ),
    "parameters": (
        lambda: bf.broadcast_parameters([("x", 1.0)]),
        lambda v: bf.broadcast_parameters({"x": full(v)}),
    ),
    "model": (
        lambda: bf.average_model([full(1.0)]),
        lambda v: bf.average_model(torch.nn.Linear(2, 2)),
    ),
    "optimizer": (
        lambda: optimize(full(1.0), num_steps_per_communication=0),
        lambda v: optimize(full(v)),
    ),
    "parameter of an optimizer": (
        lambda: optimize(torch.ones(3, dtype=torch.complex64)),
        lambda v: optimize(full(v)),
    ),
    "horovod's group": (
        lambda: hvd.grouped_allreduce([full(1.0), UNKNOWN]),
        lambda v: torch.stack(hvd.grouped_allreduce([full(v)] * 2)),
    ),
}

# Rank 2 takes no part in these.
CASES_OF_TWO = {
    "process set": (
        lambda: bf.allreduce(UNKNOWN, process_set=some()),
        lambda v: bf.allreduce(full(v), process_set=some()),
    ),
    "pair": (
        lambda: bf.pair_gossip(full(1, dtype=torch.int32), pair()),
        lambda v: bf.pair_gossip(full(v), pair()),
    ),
    "named pair": (
        lambda: bf.pair_gossip(UNKNOWN, pair(), name="x"),
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
        # The ranks did not wait, so none has heard of the others' refusals.
        assert None not in errors
        assert agreed == [0.0, 1.0, 2.0, 3.0]
        assert pending == []
        assert late is None


def _agreed(group=None):
    """Return the sums over ranks of 1 to 4."""
    options = {"op": bf.Sum, "process_set": group}
    return [float(bf.allreduce(full(float(v)), **options)[0]) for v in range(1, 5)]


def _sums(size=RANKS):
    return [float(size * value) for value in range(1, 5)]


def _refuse_in_the_background():
    """The failure belongs to one handle; those before and after it succeed."""
    handles = []
    for number in range(6):
        bad = bf.rank() == 1 and number == 2
        outcome = outcome_of(
            lambda bad=bad, number=number: bf.allreduce_nonblocking(
                UNKNOWN if bad else full(float(number)), name="x"
            )
        )
        handles.append(outcome)
    return [
        one if one.error else outcome_of(lambda one=one: float(one.result.wait()[0]))
        for one in handles
    ]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_handles_before_and_after_a_refused_call(transport):
    outcomes = run_ranks(RANKS, _refuse_in_the_background, transport=transport)
    for rank, handles in enumerate(outcomes):
        kind = TypeError if rank == 1 else MismatchError
        assert isinstance(handles[2].error, kind)
        del handles[2]
        assert [one.result for one in handles] == [0.0, 1.0, 3.0, 4.0, 5.0]


def _repeat_a_name_in_flight(folder):
    tensor = full(float(bf.rank()))
    if bf.rank() == 1:
        first = hvd.allreduce_async(tensor, op=hvd.Sum, name="busy")
        second = outcome_of(lambda: hvd.allreduce_async(tensor, name="busy"))
        say(folder, "refused")
        first = hvd.synchronize(first)
    else:
        hear(folder, "refused")
        first = hvd.allreduce(tensor, op=hvd.Sum, name="busy")
        second = outcome_of(lambda: hvd.allreduce(tensor, name="busy"))
    return float(first[0]), second, float(hvd.allreduce(full(1.0), name="busy")[0])


def test_a_name_in_flight_is_refused_and_the_first_call_goes_on(tmp_path):
    outcomes = run_ranks(RANKS, _repeat_a_name_in_flight, tmp_path)
    for rank, (first, second, third) in enumerate(outcomes):
        assert first == 0.0 + 1.0 + 2.0
        assert isinstance(second.error, ValueError)
        assert "on rank 1: an operation of this name is in flight" in second.text
        assert isinstance(second.error, MismatchError) == (rank != 1)
        assert third == 1.0


def _refuse_alone():
    errors = [outcome_of(bad).error for bad, _ in CASES.values()]
    return errors, _agreed(), current_communicator().world.engine.pending()


def test_a_world_of_one_refuses():
    ((errors, agreed, pending),) = run_ranks(1, _refuse_alone)
    assert None not in errors
    assert agreed == _sums(1)
    assert pending == []


def _refuse_what_nobody_can_know():
    outcomes = []
    if bf.rank() == 1:
        suspended = outcome_of(bf.suspend)
        assert suspended.error is None
        outcomes.append(outcome_of(lambda: bf.allreduce(UNKNOWN)))
        bf.resume()
        for call in (
            lambda: bf.allreduce(full(1.0), process_set="all"),
            lambda: bf.allreduce(full(1.0), name=7),
            lambda: bf.pair_gossip(full(1.0), 1),
            lambda: bf.pair_gossip(full(1.0), "0"),
            lambda: bf.send(UNKNOWN, 0),
        ):
            outcomes.append(outcome_of(call))
    others = bf.ProcessSet([0, 2])
    if bf.rank() == 1:
        call = lambda: bf.allreduce(full(1.0), process_set=others)  # noqa: E731
        outcomes.append(outcome_of(call))
    else:
        assert _agreed(others) == _sums(2)
    return outcomes, _agreed()


def test_calls_that_belong_to_no_other_call_are_not_counted():
    for outcomes, agreed in run_ranks(RANKS, _refuse_what_nobody_can_know):
        assert all(isinstance(one.error, (TypeError, ValueError)) for one in outcomes)
        assert agreed == _sums()


def _refuse_after_the_end():
    before = _agreed()
    group = bf.ProcessSet([0, 1])
    bf.shutdown()
    ended = outcome_of(lambda: bf.allreduce(UNKNOWN, process_set=group))
    bf.init()
    return before, ended, _agreed()


def test_refusing_after_shutdown_tells_nobody():
    for before, ended, after in run_ranks(2, _refuse_after_the_end):
        assert before == after == _sums(2)
        assert isinstance(ended.error, TypeError)


def _refuse_while_another_has_joined():
    outcome = None
    if bf.rank() == 0:
        outcome = outcome_of(lambda: bf.allreduce(full(1.0)))
    elif bf.rank() == 1:
        outcome = outcome_of(lambda: bf.allreduce(UNKNOWN))
    together = None
    if bf.rank() < 2:
        together = float(bf.allreduce(full(1.0), op=bf.Sum)[0])
    bf.join()
    return outcome, together, _agreed()


def test_a_rank_that_has_joined_is_not_harmed():
    outcomes = run_ranks(RANKS, _refuse_while_another_has_joined)
    kinds = (MismatchError, TypeError)
    for (outcome, together, agreed), kind in zip(outcomes, kinds, strict=False):
        assert isinstance(outcome.error, kind)
        assert together == 2.0
        assert agreed == _sums()
    assert outcomes[2][2] == _sums()


def _refuse_in_a_backward_pass():
    x = torch.ones(3, requires_grad=True)
    bad = bf.rank() == 1

    def backward():
        y = bf.allreduce(x, name="x")
        with torch.autograd.forward_ad.dual_level():
            gradient = torch.ones(3)
            if bad:
                # Operations have no forward-mode derivative.
                gradient = torch.autograd.forward_ad.make_dual(gradient, gradient)
            y.backward(gradient)

    return outcome_of(backward), _agreed()


def test_a_backward_pass_that_one_rank_refuses():
    for rank, (outcome, agreed) in enumerate(run_ranks(2, _refuse_in_a_backward_pass)):
        assert "the tensor has a tangent" in outcome.text
        assert isinstance(outcome.error, MismatchError) == (rank != 1)
        assert agreed == _sums(2)


def _refuse_in_a_caught_signal():
    """A call that a signal interrupts has started, so it is not refused."""

    def interrupt(signum, frame):
        raise RuntimeError("interrupted")

    if bf.rank() == 0:
        before = signal.signal(signal.SIGUSR1, interrupt)
        me = threading.main_thread().ident
        timer = threading.Timer(0.3, signal.pthread_kill, (me, signal.SIGUSR1))
        timer.start()
        outcome = outcome_of(lambda: bf.allreduce(full(1.0)))
        signal.signal(signal.SIGUSR1, before)
        bf.barrier()
    else:
        bf.barrier()
        outcome = outcome_of(lambda: bf.allreduce(full(1.0)))
    return outcome, _agreed()


def test_an_interrupted_call_is_not_refused():
    (first, mine), (second, theirs) = run_ranks(2, _refuse_in_a_caught_signal)
    assert first.text == "interrupted"
    assert second.error is None
    assert mine == theirs == _sums(2)
