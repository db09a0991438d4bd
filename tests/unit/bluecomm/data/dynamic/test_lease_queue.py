"""Requests for leases: in the background, and about ranks that are silent."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from bluecomm.data.dynamic.asker import Asker
from bluecomm.data.dynamic.lease_queue import LeaseQueue
from bluecomm.data.dynamic.ledger import RecordLedger
from bluecomm.data.dynamic.local_cell import LocalCell
from tests.support.deadlines import DEADLINE_S


class _OverMeanwhile(LocalCell):
    """Another rank finishes all records during the second request."""

    queue: LeaseQueue

    def __init__(self, initial):
        super().__init__(initial)
        self.is_asked_again = threading.Event()

    def call(self, request):
        if request["number"] == 2:
            self.is_asked_again.set()
            with self.queue._changed:
                assert self.queue._changed.wait_for(
                    lambda: self.queue._asked > 1, DEADLINE_S
                )
            other = {"holder": "1", "ranks": 2, "batch_size": 1, "lost": ["0"]}
            lease = super().call({**other, "number": 1, "wants": True})["granted"]
            super().call({**other, "number": 2, "finished": [lease["id"]]})
        return super().call(request)


class _LateThread(LeaseQueue):
    """The thread goes on after the last reply when the program has looked at it."""

    def _make_request(self):
        with self._changed:
            assert self._changed.wait_for(
                lambda: not self._is_over or self._ready.is_looked_at, DEADLINE_S
            )
        return super()._make_request()


class _WatchedDeque(deque):
    """Leases that know whether somebody looked for one after the last reply."""

    is_looked_at = False

    def __init__(self, queue):
        super().__init__()
        self.queue = queue

    def __bool__(self):
        if self.queue._is_over and not self.is_looked_at:
            self.is_looked_at = True
            self.queue._changed.notify_all()
        return len(self) > 0


def test_a_rank_that_asks_during_the_last_request_hears_of_the_end():
    cell = _OverMeanwhile(RecordLedger.begin(1).state)
    asker = Asker(cell, 1, DEADLINE_S)
    queue = _LateThread(cell, asker, in_rounds=True, lease_s=DEADLINE_S, user="test")
    queue._ready = _WatchedDeque(queue)
    cell.queue = queue
    assert queue.ready() is not None
    queue.prefetch()
    assert cell.is_asked_again.wait(DEADLINE_S)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(queue.ready)
        try:
            assert answer.result(DEADLINE_S) is None
        finally:
            queue.close()  # wakes it in any case


def test_a_silent_rank_that_hears_of_the_end_first_reports_its_batch(caplog):
    cell = LocalCell(RecordLedger.begin(1).state)
    asker = Asker(cell, 1, DEADLINE_S)
    queue = LeaseQueue(cell, asker, in_rounds=False, lease_s=DEADLINE_S, user="test")
    lease = queue.ready()
    other = {"holder": "1", "ranks": 2, "batch_size": 1, "lost": [cell.holder]}
    again = cell.call({**other, "number": 1, "wants": True})["granted"]
    cell.call({**other, "number": 2, "finished": [again["id"]]})
    assert queue.ready() is None
    queue.finish(lease)
    queue.close()
    assert "was silent for so long that others use 1 batch again" in caplog.text


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_silent_rank_loses_its_leases_after_a_while():
    cell = LocalCell(RecordLedger.begin(4).state)
    clock = Clock()
    other = LocalCell.__new__(LocalCell)
    other.__dict__.update(cell.__dict__)
    other.holder = "1"
    silent, observer = Asker(cell, 2, 30.0, clock), Asker(other, 2, 30.0, clock)
    lease = silent.ask(finished=[], wants=True)["granted"]
    assert observer.ask(finished=[])["holding"] == {"0": 1}
    clock.now = 30.0
    assert observer.ask(finished=[])["holding"] == {"0": 1}
    silent.ask(finished=[])
    clock.now = 31.0
    # Its sign of life begins a new period.
    assert observer.ask(finished=[])["holding"] == {"0": 2}
    clock.now = 61.5
    assert observer.ask(finished=[])["holding"] == {}
    assert silent.ask(finished=[lease["id"]])["refused"] == [lease["id"]]
