"""Callbacks of finished operations: each is called once, on one thread that ends."""

import queue
import sys
import threading

import pytest
import torch

import bluecomm as bf
from bluecomm.errors import CommunicationTimeout
from bluecomm.runtime import completions as completions_module
from bluecomm.runtime import current_process
from bluecomm.runtime.completions import Completions, let_others_run
from bluecomm.runtime.handle import (
    FinishedHandle,
    GroupHandle,
    Handle,
    MappedHandle,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.stand_in import replace_in


class FakeEngine:
    """Requests end when the test says so."""

    def __init__(self):
        self.ended = set()
        self._watched = set()
        self._queue = queue.SimpleQueue()

    def end(self, number):
        self.ended.add(number)
        if number in self._watched:
            self._queue.put([number])

    def close(self):
        self._queue.put(None)

    def watch(self, number):
        if number < 0:
            raise ValueError("released")
        self._watched.add(number)
        return number not in self.ended

    def next_done(self, timeout_s):
        return self._queue.get()


class Calls:
    """Callbacks that note the thread which calls them."""

    def __init__(self):
        self.threads = []
        self._changed = threading.Condition()

    def __call__(self):
        with self._changed:
            self.threads.append(threading.current_thread().name)
            self._changed.notify_all()

    def await_number(self, number):
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.threads) >= number, DEADLINE_S
            )


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def completions(engine):
    completions = Completions(engine)
    yield completions
    engine.close()
    completions.close()


def threads_of_callbacks():
    return [
        thread
        for thread in threading.enumerate()
        if thread.name == "bluecomm-completion"
    ]


@pytest.mark.parametrize("number", [7, -1], ids=["ended", "released"])
def test_the_callback_of_a_finished_request_runs_at_once(engine, completions, number):
    engine.end(7)
    calls = Calls()
    completions.add(number, calls)
    assert calls.threads == [threading.current_thread().name]
    assert threads_of_callbacks() == []


def test_all_callbacks_of_a_request_run_once_on_one_thread(engine, completions):
    calls = Calls()
    for number in (1, 1, 2):
        completions.add(number, calls)
    engine.end(1)
    calls.await_number(2)
    engine.end(2)
    calls.await_number(3)
    assert calls.threads == ["bluecomm-completion"] * 3
    assert len(threads_of_callbacks()) == 1
    engine.close()
    completions.close()
    assert threads_of_callbacks() == []
    assert calls.threads == ["bluecomm-completion"] * 3


def test_a_callback_that_raises_is_logged_and_the_others_run(
    engine, completions, monkeypatch
):
    raised = []
    monkeypatch.setattr(
        completions_module._log, "exception", lambda *_: raised.append(sys.exc_info())
    )
    calls = Calls()

    def fail():
        raise LookupError("no such thing")

    for callback in (fail, sys.exit, calls):
        completions.add(1, callback)
    engine.end(1)
    calls.await_number(1)
    completions.add(1, fail)  # at once
    assert [error[0] for error in raised] == [LookupError, SystemExit, LookupError]


def test_a_callback_that_waits_lets_another_thread_call_the_others(engine, completions):
    """Two of its callbacks wait for that of the next request."""
    calls, goes_on = Calls(), threading.Event()

    def wait():
        let_others_run()
        let_others_run()  # it does no more
        assert goes_on.wait(DEADLINE_S)
        calls()

    for callback in (wait, wait, calls):
        completions.add(1, callback)
    completions.add(2, goes_on.set)
    engine.end(1)
    calls.await_number(1)
    assert len(threads_of_callbacks()) == 3
    engine.end(2)
    calls.await_number(3)
    engine.close()
    completions.close()
    assert threads_of_callbacks() == []


def test_a_callback_that_cannot_let_others_run_fails(engine, completions, monkeypatch):
    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    errors, calls = [], Calls()

    def wait():
        with monkeypatch.context() as patch:
            replace_in(patch, completions_module, "threading", Thread=Refused)
            with pytest.raises(RuntimeError, match="new thread") as caught:
                let_others_run()
        errors.append(caught.value)

    completions.add(1, wait)
    completions.add(1, calls)
    engine.end(1)
    calls.await_number(1)
    assert len(errors) == len(threads_of_callbacks()) == 1


def test_other_threads_let_nobody_run(completions):
    let_others_run()
    completions.add(1, print)
    let_others_run()
    assert len(threads_of_callbacks()) == 1


def test_a_signal_handler_that_adds_while_the_thread_starts(completions, monkeypatch):
    started = []

    class Interrupted(threading.Thread):
        def start(self):
            started.append(self)
            if len(started) < 3:
                completions.add(2, print)  # as a signal handler may
            super().start()

    replace_in(monkeypatch, completions_module, "threading", Thread=Interrupted)
    completions.add(1, print)
    assert len(started) == 1


def test_a_thread_that_cannot_start_is_tried_again(completions, monkeypatch):
    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        replace_in(patch, completions_module, "threading", Thread=Refused)
        with pytest.raises(RuntimeError, match="new thread"):
            completions.add(1, print)
    completions.add(2, print)
    assert len(threads_of_callbacks()) == 1


def test_callbacks_added_while_requests_end_are_called_once():
    """Two threads add and one ends; each callback is called by one of the three."""
    engine = FakeEngine()
    completions = Completions(engine)
    calls = [[] for _ in range(500)]

    def add():
        for number, called in enumerate(calls):
            completions.add(number, lambda called=called: called.append(1))

    adding = [threading.Thread(target=add) for _ in range(2)]
    for thread in adding:
        thread.start()
    for number in range(len(calls)):
        engine.end(number)
    for thread in adding:
        thread.join(DEADLINE_S)
    engine.close()
    completions.close()
    # FakeEngine.watch() may report a request that ends meanwhile twice, which the real
    # one does not; no callback may be called more than once even so.
    assert {len(called) for called in calls} == {2}


def test_combined_handles_call_back_once_all_members_have_finished(world):
    def finished(number):
        return FinishedHandle(None, number, "allreduce", "x", lambda n: n)

    calls = Calls()
    group = GroupHandle([MappedHandle(finished(n), str) for n in (1, 2)])
    group.on_finish(calls)
    GroupHandle([]).on_finish(calls)
    assert len(calls.threads) == 2
    assert group.wait() == ["1", "2"]
    with pytest.raises(ValueError, match="waited for already"):
        group.on_finish(calls)


class SlowHandle(Handle):
    """An operation that ends when the test says so, or whose deadline passes."""

    def __init__(self, result):
        self.result = result
        self.has_ended = self.is_taken = False

    def done(self):
        if self.is_taken:
            raise ValueError("cannot find handle: it has been waited for already")
        return self.has_ended

    def wait(self, timeout_s=None):
        is_late = not self.done()
        self.is_taken = not is_late or timeout_s is None
        if is_late:
            raise CommunicationTimeout(f"not finished within {timeout_s} s")
        return self.result

    def on_finish(self, callback):
        callback() if self.done() else None


def test_combined_handles_are_waited_for_again_after_a_timeout():
    first, second = members = SlowHandle("1"), SlowHandle("2")
    group = GroupHandle(members)
    first.has_ended = True
    for _ in range(2):
        with pytest.raises(CommunicationTimeout, match="not finished within"):
            group.wait(0.1)
        assert not group.done()
    second.has_ended = True
    assert group.done()
    assert group.wait() == ["1", "2"]
    with pytest.raises(ValueError, match="waited for already"):
        group.wait()


def test_combined_handles_raise_the_error_of_a_member_that_has_failed():
    first, second = members = SlowHandle("1"), SlowHandle("2")
    second.has_ended = True
    with pytest.raises(CommunicationTimeout):
        GroupHandle(members).wait()
    assert first.is_taken
    assert second.is_taken


def test_every_kind_of_handle_calls_back(world):
    x = torch.ones(4, requires_grad=True)
    sparse = torch.eye(3).to_sparse()
    handles = [
        bf.allreduce_nonblocking(x),
        bf.allreduce_nonblocking_(torch.ones(3)),
        bf.grouped_allgather_nonblocking([torch.ones(2), torch.ones(1)]),
        bf.alltoall_nonblocking(torch.ones(2)),
        bf.sparse_allreduce_nonblocking(sparse),
        bf.neighbor_allreduce_nonblocking(torch.ones(2)),
    ]
    for handle in handles:
        results = queue.SimpleQueue()
        handle.on_finish(lambda h=handle, r=results: r.put(h.wait()))
        assert results.get(timeout=DEADLINE_S) is not None


@pytest.fixture
def world():
    bf.init()
    yield
    current_process().leave()
