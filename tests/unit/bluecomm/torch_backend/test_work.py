"""Work objects that several threads use, and their futures."""

from __future__ import annotations

import datetime
import threading
from unittest import mock

import pytest
import torch

from bluecomm.errors import CommunicationTimeout
from bluecomm.torch_backend import work as work_module
from bluecomm.torch_backend.work import GroupWork
from tests.support.deadlines import DEADLINE_S


def test_a_call_counts_as_ended_if_another_thread_waits_for_it_meanwhile() -> None:
    handle = mock.Mock()
    work = GroupWork([handle], [])

    def done() -> bool:
        handle.done.side_effect = None
        work.wait()
        raise ValueError("the handle has been waited for already")

    handle.done.side_effect = done
    assert work.is_completed()
    handle.wait.assert_called_once()


def test_each_waiter_has_its_own_timeout() -> None:
    handle, waits, ended = mock.Mock(), threading.Event(), threading.Event()

    def wait(_: float | None) -> None:
        waits.set()
        assert ended.wait(DEADLINE_S)

    handle.wait.side_effect = wait
    work = GroupWork([handle], [])
    first = threading.Thread(target=work.wait)
    first.start()
    try:
        assert waits.wait(DEADLINE_S)
        with pytest.raises(CommunicationTimeout, match="while another thread waits"):
            work.wait(datetime.timedelta(seconds=0.01))
    finally:
        ended.set()
        first.join()
    assert work.wait(datetime.timedelta(days=10**6))
    handle.wait.assert_called_once()


def test_a_call_that_ends_after_the_timeout_of_its_wait_has_not_failed() -> None:
    handle = mock.Mock()
    handle.wait.side_effect = [CommunicationTimeout("not finished"), None]
    handle.done.return_value = True  # by now
    assert GroupWork([handle], []).wait(datetime.timedelta(milliseconds=1))


def test_the_future_of_a_short_call_that_ends_at_once_needs_no_other_thread() -> None:
    handle = mock.Mock()
    output = torch.ones(3)
    future = GroupWork([handle], [output]).get_future()
    handle.wait.assert_called_once()
    handle.on_finish.assert_not_called()
    assert future.done()
    assert future.value() == [output]


def test_the_future_of_a_short_call_that_fails_at_once_fails() -> None:
    handle = mock.Mock(wait=mock.Mock(side_effect=LookupError("no such rank")))
    future = GroupWork([handle], [torch.ones(3)]).get_future()
    with pytest.raises(RuntimeError, match=r"LookupError: .*no such rank"):
        future.wait()


@pytest.mark.parametrize("count", [3, 1 << 20], ids=["late", "long"])
def test_the_future_of_a_call_that_takes_time_is_completed_by_its_end(
    count: int,
) -> None:
    handle = mock.Mock()
    handle.done.return_value = False
    handle.wait.side_effect = CommunicationTimeout("not finished")
    output = torch.ones(count)
    future = GroupWork([handle], [output]).get_future()
    assert handle.wait.called == (count == 3)
    assert not future.done()
    (on_finish,) = handle.on_finish.call_args.args
    handle.done.return_value = True
    handle.wait.side_effect = None
    on_finish()
    assert future.value() == [output]


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Return what copies all tensors."""
    made = mock.Mock()
    monkeypatch.setattr(work_module, "staging_of", lambda _: made)
    return made


def test_a_wait_that_times_out_has_written_nothing(staging: mock.Mock) -> None:
    handle = mock.Mock(done=mock.Mock(return_value=False))
    error = CommunicationTimeout("not finished")
    handle.wait.side_effect = [error, error, None]
    work = GroupWork([handle], [torch.ones(3)])
    for _ in range(2):
        with pytest.raises(CommunicationTimeout):
            work.wait(datetime.timedelta(milliseconds=1))
    staging.point.assert_not_called()
    work.wait()
    staging.follow.assert_not_called()
    work.wait()
    staging.point.assert_called_once()
    staging.follow.assert_called_once_with(staging.point.return_value)


def test_a_failure_of_the_device_blocks_no_later_wait(staging: mock.Mock) -> None:
    staging.point.side_effect = RuntimeError("CUDA error 700")
    work = GroupWork([mock.Mock()], [torch.ones(3)])
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        work.wait()
    assert work.wait(datetime.timedelta(seconds=DEADLINE_S))
