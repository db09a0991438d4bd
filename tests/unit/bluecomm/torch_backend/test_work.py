"""Work objects that several threads use."""

import datetime
import threading
from unittest import mock

import pytest

from bluecomm.errors import CommunicationTimeout
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
