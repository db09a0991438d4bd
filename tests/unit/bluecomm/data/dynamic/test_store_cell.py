"""A ledger in torch's store."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from bluecomm.data.dynamic import store_cell
from bluecomm.data.dynamic.ledger import RecordLedger
from bluecomm.data.dynamic.store_cell import StoreCell
from tests.support.deadlines import DEADLINE_S


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


@pytest.mark.parametrize("make_store", [dist.HashStore, OldStore])
def test_two_ranks_share_a_ledger(monkeypatch, make_store):
    store = make_store()
    monkeypatch.setattr(store_cell, "_get_default_store", lambda: store)
    cells = []
    for rank in range(2):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        cells.append(StoreCell("pass", RecordLedger.begin(4).state))
    assert [cell.holder for cell in cells] == ["0", "1"]
    used = []
    for cell in cells:
        request = {"holder": cell.holder, "ranks": 2, "batch_size": 2}
        (lease,) = cell.call({**request, "number": 1, "want": 1})["granted"]
        used += lease["intervals"]
        reply = cell.call({**request, "number": 2, "finished": [lease["id"]]})
    assert used == [[0, 2], [2, 4]]
    assert reply["is_over"]
    assert cells[1].ledger()["done"] == [[0, 4]]
    for cell in cells:
        cell.close()


def test_a_store_that_has_stopped_holds_nobody(monkeypatch):
    store = StoppedStore()
    monkeypatch.setattr(store_cell, "_get_default_store", lambda: store)
    monkeypatch.setattr(store_cell, "PrefixStore", lambda prefix, store: store)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    cell = StoreCell("pass", RecordLedger.begin(4).state)
    request = {"holder": cell.holder, "ranks": 2, "batch_size": 2, "want": 1}
    assert cell.call({**request, "number": 1})["granted"]
    cell.deadline_s = 0.01
    text = r"rank 1 cannot reach the ledger pass in the store .*: no answer within 0.01"
    with pytest.raises(TimeoutError, match=text):
        cell.call({**request, "number": 2})
    with pytest.raises(TimeoutError, match="an earlier request has not been answered"):
        cell.call({**request, "number": 3})
    cell.close()
    (thread,) = [one for one in threading.enumerate() if one.name == "bluecomm store"]
    store.goes_on.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
