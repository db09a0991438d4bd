"""Work objects that several threads use."""

from unittest import mock

from bluecomm.torch_backend.work import GroupWork


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
