"""A ledger in torch's store."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from bluecomm.data.dynamic import store_cell
from bluecomm.data.dynamic.ledger import RecordLedger
from bluecomm.data.dynamic.store_cell import StoreCell
from tests.support.deadlines import DEADLINE_S, wait_until


class OldStore(dist.HashStore):
    @property
    def clone(self):
        raise AttributeError("older versions of torch have no clone")


class StoppedStore(dist.HashStore):
    """Holds each request from a certain one on, and waits for nothing in tests."""

    def __init__(self):
        super().__init__()
        self.answers, self.goes_on = 1, threading.Event()

    def clone(self):
        return self

    def compare_set(self, *state):
        self.answers -= 1
        if self.answers < 0:
            assert self.goes_on.wait(DEADLINE_S)
        return super().compare_set(*state)


class WatchedStore(dist.HashStore):
    """Keeps the keys that ranks wait for."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def clone(self):
        return self

    def wait(self, keys, timeout):
        self.waits.append(keys)
        super().wait(keys, timeout)


@pytest.fixture
def open_cells(monkeypatch):
    """Return a function from a store to the cells of two ranks."""

    def make(store, length=4):
        monkeypatch.setattr(store_cell, "_get_default_store", lambda: store)
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        cells = []
        for rank in range(2):
            monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
            cells.append(StoreCell("pass", RecordLedger.begin(length).state))
        return cells

    return make


def finish(cells):
    """Lease and finish two records on each rank; return them, and the last reply."""
    used = []
    for cell in cells:
        request = {"holder": cell.holder, "ranks": 2, "batch_size": 2}
        lease = cell.call({**request, "number": 1, "wants": True})["granted"]
        used += lease["intervals"]
        reply = cell.call({**request, "number": 2, "finished": [lease["id"]]})
    return used, reply


@pytest.mark.parametrize("make_store", [dist.HashStore, OldStore])
def test_two_ranks_share_a_ledger(open_cells, make_store):
    cells = open_cells(make_store())
    assert [cell.holder for cell in cells] == ["0", "1"]
    used, reply = finish(cells)
    assert used == [[0, 2], [2, 4]]
    assert reply["is_over"]
    assert cells[1].ledger()["done"] == [[0, 4]]
    for cell in reversed(cells):
        cell.close()


def test_the_host_of_the_store_waits_until_others_know_of_the_end(
    open_cells, monkeypatch
):
    monkeypatch.setattr(store_cell, "_PARTING_S", DEADLINE_S)
    store = dist.HashStore()
    first, second = open_cells(store)
    finish([first, second])
    assert first.call({"holder": "0", "number": 3})["is_over"]
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(first.close)
        wait_until(lambda: store.check(["bluecomm.data/pass.closed.0"]), "it ends")
        assert not closing.done()
        second.close()
        closing.result(DEADLINE_S)


def test_the_host_of_the_store_waits_for_nobody_in_an_epoch_that_goes_on(
    open_cells, monkeypatch
):
    monkeypatch.setattr(store_cell, "_PARTING_S", DEADLINE_S)
    first, second = open_cells(dist.HashStore(), length=5)
    finish([first, second])
    first.close()
    second.close()


def test_the_host_of_the_store_waits_for_no_rank_that_is_silent(
    open_cells, monkeypatch
):
    """Rank 1 is lost while it holds all records, so rank 0 uses them."""
    store = WatchedStore()
    monkeypatch.setattr(store_cell, "PrefixStore", lambda prefix, store: store)
    first, second = open_cells(store)
    request = {"ranks": 2, "batch_size": 4, "wants": True}
    second.call({**request, "holder": "1", "number": 1})
    reply = first.call({**request, "holder": "0", "number": 1, "silent": {"1": 1}})
    finished = [reply["granted"]["id"]]
    assert first.call({"holder": "0", "number": 2, "finished": finished})["is_over"]
    first.close()
    assert store.waits == [["pass.closed.0"]]
    second.close()


def test_the_host_of_the_store_does_not_wait_for_long(open_cells, monkeypatch, caplog):
    monkeypatch.setattr(store_cell, "_PARTING_S", 0.01)
    first, second = open_cells(dist.HashStore())
    finish([second, first])
    with caplog.at_level(logging.INFO, logger="bluecomm"):
        first.close()
    assert "rank 0 has not met the others at the end: " in caplog.text
    second.close()


def test_a_store_that_has_stopped_holds_nobody(open_cells, monkeypatch):
    others = set(threading.enumerate())
    store = StoppedStore()
    monkeypatch.setattr(store_cell, "PrefixStore", lambda prefix, store: store)
    cell = open_cells(store)[1]
    request = {"holder": cell.holder, "ranks": 2, "batch_size": 2, "wants": True}
    assert cell.call({**request, "number": 1})["granted"]
    cell.deadline_s = 0.01
    text = r"rank 1 cannot reach the ledger pass in the store .*: no answer within 0.01"
    with pytest.raises(TimeoutError, match=text):
        cell.call({**request, "number": 2})
    with pytest.raises(TimeoutError, match="an earlier request has not been answered"):
        cell.call({**request, "number": 3})
    cell.close()
    (thread,) = set(threading.enumerate()) - others
    assert thread.name == "bluecomm store"
    store.goes_on.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
