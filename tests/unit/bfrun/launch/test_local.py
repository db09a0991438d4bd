"""Programs that the driver has started on this machine."""

from bfrun.hosts import LOCALHOST
from bfrun.launch.local import LocalConnection, LocalLauncher
from tests.support.deadlines import DEADLINE_S


def test_a_program_that_goes_on_is_not_awaited(monkeypatch):
    connection = LocalLauncher().start(LOCALHOST, ["cat"], 1.0)

    def wait(self, timeout_s):
        raise AssertionError("waits for the program")

    with monkeypatch.context() as left:
        left.setattr(LocalConnection, "wait", wait)
        connection.leave()
        connection.close()
    assert connection.wait(DEADLINE_S) == 0  # its input has ended
