"""Memory that other ranks may read or write is kept alive."""

from types import SimpleNamespace

import pytest
import torch

from bluecomm.errors import CommunicationTimeout
from bluecomm.window import creation
from bluecomm.window.live import LiveWindow


def make_window(**native):
    return LiveWindow("x", None, torch.zeros(1), SimpleNamespace(**native))


def test_a_request_of_another_thread_is_kept_while_old_ones_are_let_go():
    def done(ticket):
        if "theirs" not in window.kept:
            window.keep("theirs", torch.ones(1))
        return ticket != "theirs"

    window = make_window(done=done)
    for number in range(100):
        window.keep(number, torch.zeros(1))
    assert "theirs" in window.kept
    assert len(window.kept) < 100


def test_memory_stays_where_not_all_ranks_have_freed_a_window(monkeypatch):
    def barrier(timeout_s):
        raise CommunicationTimeout("rank 1 has not come")

    window = make_window(remove=lambda: None)
    comm = SimpleNamespace(windows={"x": window}, windows_in_doubt=[])
    monkeypatch.setattr(creation, "current_communicator", lambda: comm)
    monkeypatch.setattr(creation, "_compare", lambda *_: [(["x"], [])] * 2)
    monkeypatch.setattr(creation, "barrier", barrier)
    with pytest.raises(CommunicationTimeout, match="rank 1"):
        creation.win_free("x")
    assert comm.windows == {}
    assert comm.windows_in_doubt == [window]

    comm.windows, comm.windows_in_doubt = {"x": window}, []
    monkeypatch.setattr(creation, "barrier", lambda timeout_s: None)
    assert creation.win_free("x")
    assert comm.windows_in_doubt == []
