"""Memory that other ranks may read or write is kept alive."""

from types import SimpleNamespace

import pytest
import torch

from bluecomm.errors import CommunicationTimeout
from bluecomm.window import creation
from bluecomm.window.live import LiveWindow


def make_window(**native):
    return LiveWindow("x", None, torch.zeros(1), SimpleNamespace(**native))


def test_memory_stays_where_not_all_ranks_have_freed_a_window(monkeypatch):
    def barrier(timeout_s):
        raise CommunicationTimeout("rank 1 has not come")

    window = make_window(
        remove=lambda: None, release_removed=lambda: None, is_busy=False
    )
    comm = SimpleNamespace(windows={"x": window}, windows_in_doubt=[])
    monkeypatch.setattr(creation, "current_communicator", lambda: comm)
    answers = dict.fromkeys(range(2), (["x"], []))
    monkeypatch.setattr(creation, "_compare", lambda *_: answers)
    monkeypatch.setattr(creation, "barrier", barrier)
    with pytest.raises(CommunicationTimeout, match="rank 1"):
        creation.win_free("x")
    assert comm.windows == {}
    assert comm.windows_in_doubt == [window]

    comm.windows, comm.windows_in_doubt = {"x": window}, []
    monkeypatch.setattr(creation, "barrier", lambda timeout_s: None)
    assert creation.win_free("x")
    assert comm.windows_in_doubt == []
