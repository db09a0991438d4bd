"""A ledger in torch's store."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from bluecomm.data.dynamic import store_cell
from bluecomm.data.dynamic.ledger import RecordLedger
from bluecomm.data.dynamic.store_cell import StoreCell


class OldStore(dist.HashStore):
    @property
    def clone(self):
        raise AttributeError("older versions of torch have no clone")


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
