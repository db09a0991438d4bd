"""Chains of operations: who starts the next one, and how failures end them."""

import threading

import pytest

from bluecomm.errors import CommunicationTimeout, PeerLostError
from bluecomm.runtime.chained_handle import ChainedHandle, chains_under_way
from bluecomm.runtime.handle import DoneHandle, GroupHandle, Handle
from bluecomm.torch_backend.work import GroupWork
from tests.support.deadlines import DEADLINE_S


class Manual(Handle):
    """An operation that ends when the test says so."""

    def __init__(self):
        self.ended = threading.Event()
        self.outcome = None
        self.callbacks = []
        self.waits = 0

    def end(self, outcome):
        self.outcome = outcome
        self.ended.set()
        for callback in self.callbacks:
            callback()

    def done(self):
        if self.waits:
            raise ValueError("waited for already")
        return self.ended.is_set()

    def wait(self, timeout_s=None):
        if not self.ended.wait(DEADLINE_S if timeout_s is None else timeout_s):
            raise CommunicationTimeout("not finished")
        self.waits += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def on_finish(self, callback):
        if self.ended.is_set():
            callback()
        else:
            self.callbacks.append(callback)


class Interrupted(Manual):
    """An operation in whose first wait a signal handler raises an error."""

    def wait(self, timeout_s=None):
        if not self.ended.is_set():
            self.end("result")
            raise LookupError("of a signal handler")
        return super().wait(timeout_s)


class Chain:
    """A chain of two operations and a last step that adds 1."""

    def __init__(self, **options):
        self.first, self.second = Manual(), Manual()
        self.given, self.failures = [], []
        self.handle = ChainedHandle(
            self.first,
            self.start_second,
            lambda result: DoneHandle(result + 1),
            on_failure=self.failures.append,
            **options,
        )

    def start_second(self, result):
        self.given.append(result)
        return self.second


def test_the_next_operation_starts_without_a_wait():
    chain = Chain()
    assert not chain.handle.done()
    chain.first.end("pieces")
    assert chain.given == ["pieces"]
    assert not chain.handle.done()
    chain.second.end(6)
    assert chain.handle.done()
    assert chain.handle.wait() == 7
    with pytest.raises(ValueError, match="has been waited for already"):
        chain.handle.wait()


def test_a_chain_goes_on_when_its_handle_is_dropped():
    chain = Chain()
    del chain.handle
    chain.first.end("pieces")
    assert chain.given == ["pieces"]


def test_a_chain_in_the_foreground_starts_operations_in_wait():
    chain = Chain(in_background=False)
    chain.second.end(6)
    chain.first.end("pieces")
    assert chain.given == []
    assert chain.handle.wait() == 7


def test_finished_operations_are_chained_at_once():
    first = Manual()
    first.end(1)
    handle = ChainedHandle(
        first, lambda one: DoneHandle(one + 1), lambda two: DoneHandle(two + 1)
    )
    assert handle.done()
    assert handle.wait() == 3


@pytest.mark.parametrize("waits_before", [False, True])
def test_a_chain_may_begin_with_a_chain(waits_before):
    inner = Chain()
    handle = ChainedHandle(inner.handle, lambda one: DoneHandle(2 * one))
    inner.first.end("pieces")
    if waits_before:
        # The wait itself ends the inner chain, which calls back in this thread.
        inner.second.outcome = 6
        inner.second.ended.set()
    else:
        inner.second.end(6)
        assert handle.done()
    assert handle.wait() == 14


def test_a_callback_may_wait():
    chain, results = Chain(), []
    chain.handle.on_finish(lambda: results.append(chain.handle.wait()))
    chain.first.end("pieces")
    chain.second.end(6)
    assert results == [7]


def test_a_wait_that_is_too_short_can_be_repeated():
    chain = Chain()
    with pytest.raises(CommunicationTimeout):
        chain.handle.wait(0.0)
    chain.first.end("pieces")
    with pytest.raises(CommunicationTimeout):
        chain.handle.wait(0.0)
    chain.second.end(6)
    assert chain.handle.wait(0.0) == 7


def test_an_end_that_a_waiting_thread_has_seen_is_not_lost():
    """The thread of callbacks finds the lock taken by a wait that then times out."""
    chain = Chain()

    def time_out(_=None):
        other = threading.Thread(target=chain.first.end, args=("pieces",))
        other.start()
        other.join(DEADLINE_S)
        raise CommunicationTimeout("not finished")

    chain.first.wait, wait = time_out, chain.first.wait
    real_done = chain.first.done
    chain.first.done = lambda: (setattr(chain.first, "wait", wait), real_done())[1]
    with pytest.raises(CommunicationTimeout):
        chain.handle.wait(1.0)
    assert chain.given == ["pieces"]


@pytest.mark.parametrize("waits_before", [False, True])
def test_callbacks_run_once_at_the_end(waits_before):
    chain, called = Chain(in_background=not waits_before), []
    chain.handle.on_finish(lambda: called.append(1))
    chain.first.end("pieces")
    assert called == []
    chain.second.end(6)
    assert called == [1]
    chain.handle.on_finish(lambda: called.append(2))
    assert called == [1, 2]
    assert chain.handle.wait() == 7


@pytest.mark.parametrize("failing", ["first", "second"])
def test_a_failed_operation_ends_the_chain(failing):
    chain, called = Chain(), []
    chain.handle.on_finish(lambda: called.append(1))
    error = PeerLostError("rank 1 is lost")
    if failing == "second":
        chain.first.end("pieces")
    getattr(chain, failing).end(error)
    assert chain.failures == [error]
    assert called == [1]
    assert chain.handle.done()
    chain.handle.on_finish(lambda: called.append(2))
    assert called == [1, 2]
    with pytest.raises(PeerLostError, match="rank 1 is lost"):
        chain.handle.wait()
    with pytest.raises(ValueError, match="has been waited for already"):
        chain.handle.done()


def test_a_failed_step_ends_the_chain():
    first, seen = Manual(), []

    def refuse(_):
        raise ValueError("the heads differ")

    handle = ChainedHandle(first, refuse, refuse, on_failure=seen.append)
    first.end(None)
    assert str(seen[0]) == "the heads differ"
    with pytest.raises(ValueError, match="the heads differ"):
        handle.wait()


def test_the_deadline_of_an_operation_ends_the_chain():
    chain = Chain()
    chain.first.end(CommunicationTimeout("deadline"))
    with pytest.raises(CommunicationTimeout, match="deadline"):
        chain.handle.wait()
    assert len(chain.failures) == 1


def test_no_callback_is_lost_while_another_thread_waits():
    """A thread has taken a callback, and another one is about to finish waiting."""
    taken, called = threading.Event(), threading.Event()
    finished = threading.Event()

    class Slow(Manual):
        def on_finish(self, callback):
            taken.set()
            finished.wait(0.2)
            if self.waits:
                raise ValueError("waited for already")
            callback()

    last = Slow()
    last.end(3)
    handle = ChainedHandle(DoneHandle(None), lambda _: last)
    thread = threading.Thread(target=handle.on_finish, args=(called.set,))
    thread.start()
    assert taken.wait(DEADLINE_S)
    assert handle.wait() == 3
    finished.set()
    thread.join(DEADLINE_S)
    assert called.is_set()


def test_a_chain_is_under_way_until_its_last_operation_has_ended():
    chain = Chain()
    assert chain.handle in chains_under_way()
    assert not chain.handle.ends_within(0.0)
    chain.first.end(1)
    assert not chain.handle.ends_within(0.0)
    threading.Timer(0.01, chain.second.end, [2]).start()
    assert chain.handle.ends_within(None)
    assert chain.handle.wait() == 3
    assert chain.handle.ends_within(0.0)


def test_a_chain_that_nobody_else_moves_on_counts_as_ended():
    assert Chain(in_background=False).handle.ends_within(0.0)


def test_a_chain_that_has_failed_has_ended():
    chain = Chain()
    chain.first.end(PeerLostError("rank 1 is lost"))
    assert chain.handle.ends_within(0.0)
    assert len(chain.failures) == 1


@pytest.mark.parametrize("kind", [ChainedHandle, GroupHandle, GroupWork])
def test_an_error_of_a_signal_handler_does_not_fail_the_operation(kind):
    failures, operation, other = [], Interrupted(), Manual()
    if kind is ChainedHandle:
        handle = ChainedHandle(operation, DoneHandle, on_failure=failures.append)
        expected = "result"
    elif kind is GroupHandle:
        other.end("more")
        handle, expected = GroupHandle([operation, other]), ["result", "more"]
    else:
        handle, expected = GroupWork([operation], []), True
    with pytest.raises(LookupError, match="of a signal handler"):
        handle.wait()
    assert not failures
    assert not other.waits
    assert handle.wait() == expected
