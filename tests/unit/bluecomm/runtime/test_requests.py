"""The requests of a world, and how long it keeps their tensors."""

import functools
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from bluecomm.runtime import requests as requests_module
from bluecomm.runtime.call import NO_MEMORY, Call, KeptMemory
from bluecomm.runtime.requests import Requests


class Interrupted:
    """An engine whose call is interrupted: the signal handler raises on return."""

    def __init__(self):
        self.released = []

    def submit(self, call, kept):
        kept[7] = call
        raise KeyboardInterrupt

    def finished(self):
        return [7]

    def held(self):
        return []

    def release(self, number):
        self.released.append(number)
        return True


class Reading:
    """Operation 7 has failed, and a transport reads its memory until ``let_go``."""

    def __init__(self):
        self.reads = [7]
        self.over = []

    def let_go(self):
        self.over, self.reads = self.reads, []

    def release(self, number):
        return number not in self.reads

    def finished(self):
        over, self.over = self.over, []
        return over

    def held(self):
        return list(self.reads)

    def submit(self, *_):
        return 8


def make_requests(engine, kept):
    """Return the requests of an engine, some of which keep tensors already."""
    requests = Requests(engine, SimpleNamespace(operation_timeout_s=1.0), rank=0)
    requests._kept.update(kept)
    return requests


def call_with(*keep):
    """Return a barrier that keeps some objects."""
    call = Call("barrier", "uint8", [], NO_MEMORY, NO_MEMORY, keep, lambda _: None)
    call.name = "b"
    return call


def start(requests, *, blocking=False):
    call = call_with()
    call.blocking = blocking
    requests.start(call)


@pytest.mark.parametrize("blocking", [True, False])
def test_an_operation_whose_start_was_interrupted_is_dropped(blocking):
    requests = make_requests(Interrupted(), {3: call_with()})
    with pytest.raises(KeyboardInterrupt):
        start(requests, blocking=blocking)
    requests.reap()
    assert requests._engine.released == [7]
    assert list(requests._kept) == [3]


def test_a_window_request_whose_start_was_interrupted_is_dropped():
    requests = make_requests(Interrupted(), {3: [()]})
    with pytest.raises(KeyboardInterrupt):
        requests.start_request(
            lambda kept, keep: requests._engine.submit(keep, kept), [], None
        )
    requests.reap()
    assert requests._engine.released == [7]
    assert list(requests._kept) == [3]


def test_a_window_request_is_noted_unless_it_has_ended():
    def submit(number, kept, keep):
        if number:
            kept[number] = keep
        return number

    requests = make_requests(Reading(), {})
    for number in (0, 8):
        start = functools.partial(submit, number)
        keep = [torch.ones(1)]
        assert requests.start_request(start, keep, 5.0) == number
    assert requests._kept == {8: keep}
    assert requests.has_hard_deadline(8)
    assert not requests.has_hard_deadline(0)


def test_a_call_may_stand_and_a_window_request_may_not():
    call = Call("recv", "uint8", [], (0, 0), (300, 10), (), lambda _: None)
    requests = make_requests(Reading(), {1: call, 2: KeptMemory("owner", (200, 50))})
    assert [requests.is_standing(number) for number in (1, 2, 3)] == [False] * 3
    call.is_standing = True
    assert [requests.is_standing(number) for number in (1, 2, 3)] == [
        True,
        False,
        False,
    ]


def test_requests_that_stand_do_not_count_as_started():
    class Waiting(Reading):
        def pending(self):
            return [{"id": 1}, {"id": 2}]

    call = call_with()
    call.is_standing = True
    requests = make_requests(Waiting(), {1: call, 2: call_with()})
    assert requests.started() == [2]


def test_a_request_that_was_released_has_ended():
    class Waiting(Reading):
        def wait(self, number, limit_s):
            if number == 3:
                raise ValueError("no such request")
            return "completion" if limit_s > number else None

    requests = make_requests(Waiting(), {})
    found = [requests.ends_within(number, 2.0) for number in (1, 2, 3)]
    assert found == [True, False, True]
    assert requests.ends_within(2, None)


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_a_callback_that_waits_does_not_block_the_program(has_ended, timeout_s):
    """Another thread, which has waited before, may start what the others wait for."""

    class Waiting(Reading):
        def done(self, number):
            return has_ended

        def wait(self, number, limit_s):
            assert requests.is_waited_for(number)
            return requests.blocks_program(number)

    requests = make_requests(Waiting(), {})
    handed = []
    requests._completions = SimpleNamespace(
        is_here=lambda: True, hand_over=lambda: handed.append(True)
    )
    requests._waiters.add(-1)
    assert requests.wait(7, timeout_s) is has_ended
    assert bool(handed) == (timeout_s is None and not has_ended)
    assert not requests.is_waited_for(7)


def test_memory_is_in_use_by_operations_and_window_requests():
    call = Call("barrier", "uint8", [], (100, 50), [(300, 10)], (), lambda _: None)
    kept = {1: call, 2: KeptMemory("owner", (200, 50)), 3: []}
    requests = make_requests(Reading(), kept)
    used = [
        address for address in range(90, 400, 20) if requests.is_in_use(address, 20)
    ]
    assert used == [90, 110, 130, 190, 210, 230, 290]


def test_threads_start_requests_at_the_same_time():
    """A nonblocking put copies into shared memory while it starts."""

    class Starting(Reading):
        def submit(self, *_):
            assert not requests._lock.locked()
            return 8

    requests = make_requests(Starting(), {})
    start(requests)
    assert requests.start_request(requests._engine.submit, [], None) == 8


def test_many_outstanding_requests_are_not_reaped_at_each_start():
    class Counting(Reading):
        looks = 0

        def held(self):
            self.looks += 1
            return []

    engine = Counting()
    requests = make_requests(engine, dict.fromkeys(range(10, 1000)))
    for _ in range(100):
        start(requests)
    assert engine.looks == 1


def test_a_released_operation_keeps_its_tensors_until_the_transport_lets_go():
    engine = Reading()
    requests = make_requests(engine, {7: call_with(torch.ones(1))})
    tensor = weakref.ref(requests._kept[7].keep[0])
    requests.release(7)
    start(requests)
    assert tensor() is not None
    engine.let_go()
    start(requests)
    assert tensor() is None
    assert requests._reap_at == requests_module._REAP_AT


def test_a_release_that_was_interrupted_frees_the_tensors():
    class Released(Reading):
        def release(self, number):
            raise KeyboardInterrupt  # a signal handler, once the id is forgotten

    engine = Released()
    requests = make_requests(engine, {7: "tensors"})
    with pytest.raises(KeyboardInterrupt):
        requests.release(7)
    assert requests._kept == {7: "tensors"}  # a transport reads them
    engine.let_go()
    with pytest.raises(KeyboardInterrupt):
        requests.release(7)
    assert requests._kept == {}


def test_a_forgotten_operation_keeps_its_tensors_until_the_transport_lets_go():
    engine = Reading()
    requests = make_requests(engine, {7: call_with(torch.ones(1))})
    requests.forget(7)
    requests.reap()
    assert list(requests._kept) == [7]
    engine.let_go()
    requests.reap()
    assert requests._kept == {}


def test_memory_that_is_read_after_the_end_is_never_freed(monkeypatch):
    held = []
    monkeypatch.setattr(requests_module, "_held", held)
    engine = Reading()
    requests = make_requests(engine, {7: call_with(torch.ones(1))})
    tensor = weakref.ref(requests._kept[7].keep[0])
    requests._kept[8] = call_with(torch.ones(1))
    other = weakref.ref(requests._kept[8].keep[0])
    requests._end()
    del requests
    gc.collect()
    assert tensor() is not None
    assert other() is None
    assert [call.keep for call in held] == [(tensor(),)]


@pytest.mark.parametrize("number", [0, 7])
def test_a_call_after_requests_is_noted_if_it_has_started(number):
    requests = make_requests(SimpleNamespace(run_after=lambda ids, call: number), {})
    started = []
    requests.run_after([], call_with(), started)
    assert [handle.number for handle in started] == [number]


def test_no_call_after_requests_starts_in_a_group_that_was_removed_meanwhile():
    def run_after(ids, call):
        raise ValueError("there is no group 5")

    started = []
    for engine in (run_after, lambda ids, call: None):
        requests = make_requests(SimpleNamespace(run_after=engine), {})
        requests.run_after([], call_with(), started)
    assert started == []
