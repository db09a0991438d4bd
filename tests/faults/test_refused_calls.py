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
from tests.support.deadlines import DEADLINE_S, hear, say, wait_until
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks
from tests.support.refused_calls import CASES as REFUSED
from tests.support.refused_calls import (
    CASES_OF_TWO,
    UNKNOWN,
    full,
    some,
    uneven_optimizer,
)
from tests.support.unfit_calls import UNFIT

pytestmark = pytest.mark.faults

RANKS = 3
CASES = {**REFUSED, **{f"unfit: {name}": case for name, case in UNFIT.items()}}


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


def _join_again(algorithm, through_module):
    optimizer = uneven_optimizer(algorithm)
    join = bf.join if through_module else optimizer.join
    first = outcome_of(lambda: join(1, wait=True) if bf.rank() == 1 else join())
    again = [outcome_of(join) for _ in range(3)]
    return first, [one.error or one.result for one in again]


@pytest.mark.parametrize("through_module", [True, False])
@pytest.mark.parametrize("algorithm", ["gradient_allreduce", "local_sgd", "noloco"])
def test_an_optimizer_joins_after_a_refused_call(algorithm, through_module):
    outcomes = run_ranks(RANKS, _join_again, algorithm, through_module)
    for rank, (first, again) in enumerate(outcomes):
        assert isinstance(first.error, TypeError if rank == 1 else MismatchError)
        assert ("TypeError: " in first.text) == (rank != 1)
        assert again == [RANKS - 1] * 3


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


def _signal_once_it_waits():
    engine = current_communicator().world.engine
    wait_until(engine.pending, "the call has not started")
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)


def _refuse_in_a_caught_signal():
    """A call that a signal interrupts has started, so it is not refused."""

    def interrupt(signum, frame):
        raise RuntimeError("interrupted")

    if bf.rank() == 0:
        before = signal.signal(signal.SIGUSR1, interrupt)
        thread = threading.Thread(target=_signal_once_it_waits)
        thread.start()
        outcome = outcome_of(lambda: bf.allreduce(full(1.0)))
        thread.join()
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
