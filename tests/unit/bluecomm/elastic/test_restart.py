"""When ``run`` calls its function again, in one process."""

import pytest

import bluecomm as bf
from bluecomm.elastic import HorovodInternalError, HostsUpdatedInterrupt, State, run
from bluecomm.elastic import restart as module


class Recorded(State):
    """A state that notes what is done with it."""

    def __init__(self):
        super().__init__()
        self.done = []

    def reset(self):
        self.done.append("reset")

    def save(self):
        self.done.append("save")

    def restore(self):
        self.done.append("restore")

    def sync(self):
        self.done.append("sync")

    def on_finish(self):
        self.done.append("finish")


@pytest.fixture(autouse=True)
def world():
    bf.init()
    yield
    bf.shutdown()


def calls(*outcomes, commit=False):
    """Run a function with these outcomes, and return what its state has noted."""
    state, left = Recorded(), list(outcomes)

    @run
    def train(state, x, y=0):
        assert (x, y) == (1, 2)
        state.done.append("call")
        if commit:
            state.commit()
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert train.__name__ == "train"
    try:
        result = train(state, 1, y=2)
    except Exception as error:
        result = error
    return result, state.done


def test_a_function_that_returns():
    assert calls("result") == ("result", ["sync", "call", "finish"])


def test_an_interrupt_undoes_nothing():
    result, done = calls(HostsUpdatedInterrupt(), HostsUpdatedInterrupt(True), 3)
    assert result == 3
    assert done == [
        *("sync", "call", "reset"),
        *("sync", "call", "reset"),
        *("call", "finish"),
    ]


def test_an_error_goes_back_to_the_last_commit():
    errors = HorovodInternalError("first"), HorovodInternalError("second")
    result, done = calls(*errors, 3, commit=True)
    assert result == 3
    once = ["sync", "call", "save"]
    again = [*once, "restore", "reset"]
    assert done == [*again, *again, *once, "finish"]


def test_an_error_that_comes_back_without_progress_is_raised():
    second = HorovodInternalError("second")
    assert calls(HorovodInternalError("first"), second)[0] is second


def test_other_errors_are_raised():
    error = KeyError("x")
    assert calls(error) == (error, ["sync", "call"])


def test_a_job_that_ends_with_a_loss_raises_the_error(monkeypatch):
    monkeypatch.setattr(module, "_may_retry", lambda: False)
    error = HorovodInternalError("lost")
    assert calls(error) == (error, ["sync", "call"])


def test_a_job_that_stops_keeps_its_files(monkeypatch):
    monkeypatch.setattr(module, "is_stopping", lambda: True)
    assert calls(1) == (1, ["sync", "call"])
