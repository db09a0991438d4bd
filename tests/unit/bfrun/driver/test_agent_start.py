import os
import signal
import sys

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver.agent_start import Interrupted, start_agents
from bfrun.driver.signals import SignalWatch
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher
from bfrun.launch.local import LocalLauncher
from tests.support.deadlines import DEADLINE_S

HOSTS = [Host("one"), Host("two")]
# Until the connection is closed.
WAIT = "import sys; sys.stdin.buffer.read()"


class Scripted(Launcher):
    """Starts a program of the test's choice instead of the agent."""

    def __init__(self, **programs):
        self.programs, self.links = programs, []
        self.on_second = lambda: None

    def start(self, host, argv, timeout_s):
        program = self.programs.get(host.name)
        if program is not None:
            argv = [sys.executable, "-c", program]
        connection = LocalLauncher().start(host, argv, timeout_s)
        self.links.append(connection)
        if host.name == "two":
            self.on_second()
        return connection

    def close(self):
        pass


def start(launcher, **settings):
    with SignalWatch() as signals:
        return start_agents(HOSTS, launcher, LaunchConfig(("x",), **settings), signals)


def test_every_agent_is_ready():
    sessions = start(Scripted())
    try:
        assert [session.host for session in sessions] == HOSTS
        assert all(session.ready.agent_pid > 0 for session in sessions)
    finally:
        for session in sessions:
            session.close()


def test_a_banner_is_skipped():
    launcher = Scripted()

    def with_banner(host, argv, timeout_s):
        shell = ["sh", "-c", 'echo "Welcome to $0"; exec "$@"', host.name, *argv]
        return LocalLauncher().start(host, shell, timeout_s)

    launcher.start = with_banner
    sessions = start(launcher)
    for session in sessions:
        assert session.ready is not None
        session.close()


@pytest.mark.parametrize(
    ("program", "text"),
    [
        # The driver notices first either the end of output or the closed input.
        ("import sys; sys.exit('too old')", "; exit status 1; too old"),
        (f"print('hello', flush=True); {WAIT}", "no answer within 4 s; hello"),
    ],
)
def test_a_program_that_is_no_agent_is_reported(program, text):
    launcher = Scripted(two=program)
    with pytest.raises(LaunchError) as caught:
        start(launcher, start_timeout_s=4.0)
    assert str(caught.value).startswith("host 'two': the agent did not start: ")
    assert text in str(caught.value)
    assert "--python" in str(caught.value)
    assert all(connection.wait(DEADLINE_S) is not None for connection in launcher.links)


def test_an_interpreter_that_does_not_exist_is_reported():
    with pytest.raises(LaunchError, match=r"host 'one': .* '/no/python'"):
        start(Scripted(), python="/no/python")


def test_the_user_may_end_the_start():
    launcher = Scripted(two=WAIT)
    launcher.on_second = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Interrupted):
        start(launcher)
    assert all(connection.wait(DEADLINE_S) is not None for connection in launcher.links)


def test_signal_handlers_are_restored_after_the_watch():
    before = signal.getsignal(signal.SIGINT)
    with SignalWatch() as signals:
        assert signals.take() == []
        os.kill(os.getpid(), signal.SIGTERM)
        signals.wake()
        assert signals.take() == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is before
