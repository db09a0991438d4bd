import pytest

from bluecomm.errors import CommunicationTimeout
from bluecomm.optim.algorithm import Algorithm, Round


class FakeHandle:
    """A handle whose result is known."""

    def __init__(self, result):
        self.result = result
        self.waited = False

    def wait(self):
        self.waited = True
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_a_round_returns_all_results_once():
    pending = Round()
    assert not pending
    pending.add("a", FakeHandle(1))
    pending.add("b", FakeHandle(2))
    assert pending
    assert pending.wait() == [("a", 1), ("b", 2)]
    assert not pending
    assert pending.wait() == []


def test_a_round_waits_for_all_and_raises_the_first_failure():
    handles = [FakeHandle(1), FakeHandle(KeyError("x")), FakeHandle(ValueError("y"))]
    pending = Round()
    for handle in handles:
        pending.add("bucket", handle)
    with pytest.raises(KeyError, match="x"):
        pending.wait()
    assert all(handle.waited for handle in handles)
    assert not pending


def test_a_timeout_names_skip_step():
    pending = Round()
    pending.add("bucket", FakeHandle(CommunicationTimeout("too late", peers=[3])))
    with pytest.raises(
        CommunicationTimeout, match=r"too late\. .*must call optimizer\.skip_step\(\)"
    ) as raised:
        pending.wait()
    assert raised.value.peers == (3,)
    assert "skip_step" in raised.value.remedy


def test_join_is_optional():
    assert Algorithm().obstacle_to_join() == (
        "has no join; give all ranks the same number of batches"
    )
