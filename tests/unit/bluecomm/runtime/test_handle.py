"""Handles: how an outcome becomes a result or an error, and when they release."""

import math
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from bluecomm import errors
from bluecomm.runtime import failure
from bluecomm.runtime.handle import (
    FinishedHandle,
    Handle,
    MappedHandle,
    RequestHandle,
    ends_within,
    wait_all,
)


class FakeWorld:
    rank = 2

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.released, self.forgotten, self.limits_s = [], [], []

    def wait(self, number, timeout_s):
        self.limits_s.append(timeout_s)
        return self.outcomes.pop(0)

    def limit_s(self, number):
        return 7.0

    def is_done(self, number):
        return bool(self.outcomes)

    def release(self, number):
        self.released.append(number)

    def forget(self, number):
        self.forgotten.append(number)


def completion(code=failure.OK, text="", rank=-1, was_carried_out=False):
    return SimpleNamespace(
        code=code, text=text, rank=rank, was_carried_out=was_carried_out
    )


def handle_of(world, number=5):
    return RequestHandle(world, number, "allreduce", "x", lambda n: f"result {n}")


def test_the_result_is_made_once_and_the_operation_released():
    world = FakeWorld(completion())
    handle = handle_of(world)
    assert handle.done()
    assert repr(handle) == "<Handle of allreduce 'x', outstanding>"
    assert handle.wait() == "result 5"
    assert world.released == [5]
    with pytest.raises(ValueError, match="allreduce 'x' has been waited for already"):
        handle.wait()
    del handle
    assert world.forgotten == []


@pytest.mark.parametrize("was_carried_out", [False, True])
def test_a_failure_of_an_earlier_operation_leaves_the_result(was_carried_out):
    late = completion(failure.PEER_LOST, "rank 1 is gone", 1, was_carried_out)
    world, made = FakeWorld(late), []
    handle = RequestHandle(world, 5, "allreduce", "x", made.append)
    with pytest.raises(errors.PeerLostError, match="rank 1 is gone") as raised:
        handle.wait()
    assert failure.is_late(raised.value) == was_carried_out
    assert made == ([5] if was_carried_out else [])
    assert world.released == [5]


def test_a_failure_of_an_earlier_operation_is_raised_if_the_result_fails_too():
    late = completion(failure.PEER_LOST, "rank 1 is gone", 1, was_carried_out=True)
    world, own = FakeWorld(late), RuntimeError("the copy failed")
    handle = RequestHandle(world, 5, "allreduce", "x", Mock(side_effect=own))
    with pytest.raises(errors.PeerLostError, match="rank 1 is gone") as raised:
        handle.wait()
    assert raised.value.__cause__ is own
    assert world.released == [5]


def test_a_finished_operation_needs_no_world():
    world = FakeWorld()
    handle = FinishedHandle(world, 0, "allreduce", "x", lambda n: f"result {n}")
    assert handle.done()
    assert handle.wait() == "result 0"
    for again in (handle.done, handle.wait):
        with pytest.raises(ValueError, match="'x' has been waited for already"):
            again()
    del handle
    assert world.released == world.forgotten == []


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        (failure.INVALID, ValueError),
        (failure.MISMATCH, errors.MismatchError),
        (failure.PEER_LOST, errors.PeerLostError),
        (failure.TIMED_OUT, errors.CommunicationTimeout),
        (failure.CLOSED, errors.ShutdownError),
        (failure.FREED, errors.ShutdownError),
        (failure.INTERNAL, errors.BluecommError),
    ],
)
def test_a_failure_is_raised_with_its_facts(code, error_class):
    world = FakeWorld(completion(code, "what happened", 1))
    with pytest.raises(error_class, match=r"^what happened$") as raised:
        handle_of(world).wait()
    assert world.released == [5]
    if code == failure.INVALID:
        assert not isinstance(raised.value, errors.BluecommError)
        return
    error = raised.value
    assert (error.operation, error.name) == ("allreduce", "x")
    assert (error.rank, error.peers) == (2, (1,))
    assert error.timeout_s == (7.0 if code == failure.TIMED_OUT else None)


def test_a_wait_that_is_too_short_can_be_repeated():
    world = FakeWorld(None, completion())
    handle = handle_of(world)
    with pytest.raises(errors.CommunicationTimeout, match=r"within 0\.5 s; the opera"):
        handle.wait(0.5)
    assert world.released == []
    assert handle.wait() == "result 5"


def test_an_interrupted_wait_can_be_repeated():
    world = FakeWorld(completion())
    handle = handle_of(world)
    world.wait, wait = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt), world.wait
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    world.wait = wait
    assert handle.wait() == "result 5"


def test_a_dropped_handle_is_forgotten():
    world = FakeWorld()
    handle_of(world)
    assert world.forgotten == [5]


def test_a_mapped_handle():
    world = FakeWorld(completion())
    handle = MappedHandle(handle_of(world), str.upper)
    assert handle.done()
    assert handle.wait() == "RESULT 5"
    del handle
    assert world.forgotten == []


def test_all_handles_are_waited_for_if_one_fails():
    world = FakeWorld(completion(), completion(failure.MISMATCH, "no"), completion())
    with pytest.raises(errors.MismatchError, match="no"):
        wait_all([handle_of(world, number) for number in (1, 2, 3)])
    assert world.released == [1, 2, 3]


def test_a_common_limit_shrinks():
    world = FakeWorld(completion(), completion())
    assert wait_all([handle_of(world, 1), handle_of(world, 2)], 9.0) == [
        "result 1",
        "result 2",
    ]
    assert all(0 < limit_s <= 9.0 for limit_s in world.limits_s)
    assert not math.isinf(world.limits_s[0])


def test_a_handle_says_what_each_kind_must_do():
    with pytest.raises(TypeError, match="abstract"):
        Handle()
    assert all(isinstance(one, Handle) for one in (handle_of(FakeWorld()),))


def test_a_wait_with_a_limit_tells_whether_the_operation_has_ended():
    handle = handle_of(FakeWorld(None, completion()))
    assert not ends_within(handle, 0.1)
    assert ends_within(handle, 0.1)


def test_an_operation_that_has_reached_its_deadline_raises():
    handle = handle_of(FakeWorld(completion(failure.TIMED_OUT, "too late")))
    with pytest.raises(errors.CommunicationTimeout, match="too late"):
        ends_within(handle, 0.1)
