import os
import signal
import sys
import threading

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver import agent_start
from bfrun.driver.agent_start import Interrupted, start_agents
from bfrun.driver.signals import SignalWatch
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher
from bfrun.launch.local import LocalLauncher
from tests.support.deadlines import DEADLINE_S, wait_until

HOSTS = [Host("one"), Host("two")]
# Until the connection is closed.
WAIT = "import sys; sys.stdin.buffer.read()"
HELLO = f"print('hello', flush=True); {WAIT}"


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


class ClockOfAgents:
    """A clock that stands still until both programs have said something.

    Args:
        times: The times that it shows then. It repeats the last one.
    """

    def __init__(self, monkeypatch, *times):
        self._starts, self._times = [], list(times)
        make = agent_start.AgentStart

        def note(*args):
            self._starts.append(make(*args))
            return self._starts[-1]

        monkeypatch.setattr(agent_start, "AgentStart", note)
        monkeypatch.setattr(agent_start, "time", self)

    def monotonic(self):
        one, two = [start.session for start in self._starts]
        if not (one and one.ready and two and two._filter.banner):
            return 0.0
        return self._times.pop(0) if len(self._times) > 1 else self._times[0]


def assert_only_two_is_reported(caught, launcher, text):
    said = str(caught.value)
    assert said.startswith("host 'two': the agent did not start: ")
    assert text in said
    assert "--python" in said
    assert "host 'one'" not in said
    assert all(connection.wait(DEADLINE_S) is not None for connection in launcher.links)


def test_a_program_that_is_no_agent_is_reported():
    launcher = Scripted(two="import sys; sys.exit('too old')")
    with pytest.raises(LaunchError) as caught:
        start(launcher)
    # The driver notices first either the end of output or the closed input.
    assert_only_two_is_reported(caught, launcher, "; exit status 1; too old")


def test_a_program_that_never_becomes_an_agent_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(agent_start, "_TELL_AFTER_S", 1.0)
    ClockOfAgents(monkeypatch, 2.0, 5.0)
    launcher = Scripted(two=HELLO)
    with pytest.raises(LaunchError) as caught:
        start(launcher, start_timeout_s=4.0)
    assert_only_two_is_reported(caught, launcher, "no answer within 4 s; hello")
    told = "bfrun: waiting for two (--start-timeout: 4 s)"
    assert told in capsys.readouterr().err


class Noted:
    """Passes on what is sent to one agent, and counts the heartbeats in it."""

    def __init__(self, connection):
        self._connection, self.beats = connection, threading.Semaphore(0)
        self.said = b""

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def send(self, data):
        sent = self._connection.send(data)
        self.said += bytes(data[:sent])
        for _ in range(bytes(data[:sent]).count(b'"beat"')):
            self.beats.release()
        return sent


@pytest.mark.parametrize("slow", ["connection", "interpreter"])
def test_agents_get_heartbeats_while_others_are_awaited(slow, tmp_path):
    launcher, go = Scripted(), tmp_path / "go"
    first = threading.Event()
    noted = []

    def await_beats():
        assert first.wait(DEADLINE_S)
        # The second heartbeat comes when the first agent is ready, or after a second.
        assert all(noted[0].beats.acquire(timeout=DEADLINE_S) for _ in range(2))

    def start_slowly(host, argv, timeout_s):
        if host.name == "one":
            noted.append(Noted(LocalLauncher().start(host, argv, timeout_s)))
            first.set()
            return noted[0]
        if slow == "connection":
            await_beats()
            return LocalLauncher().start(host, argv, timeout_s)
        threading.Thread(target=lambda: (await_beats(), go.touch())).start()
        wait = f'until [ -e "{go}" ]; do sleep 0.02; done; exec "$@"'
        return LocalLauncher().start(host, ["sh", "-c", wait, "sh", *argv], timeout_s)

    launcher.start = start_slowly
    for session in start(launcher):
        assert session.ready is not None
        session.close()


def test_the_start_may_be_suspended(monkeypatch):
    launcher, noted, stopped = Scripted(), [], []
    monkeypatch.setattr(
        "bfrun.driver.suspend.stop_myself", lambda: stopped.append(noted[0].said)
    )

    def note_first(host, argv, timeout_s):
        if host.name == "one":
            noted.append(Noted(LocalLauncher().start(host, argv, timeout_s)))
            return noted[0]
        wait_until(lambda: noted and b'"beat"' in noted[0].said, "no beat")
        os.kill(os.getpid(), signal.SIGTSTP)
        return LocalLauncher().start(host, argv, timeout_s)

    launcher.start = note_first
    for session in start(launcher):
        session.flush()
        session.close()
    (before,) = stopped
    assert b'"suspend"' in before
    assert b'"resume"' in noted[0].said[len(before) :]


def test_an_error_of_one_host_does_not_wait_for_slow_hosts(monkeypatch):
    monkeypatch.setattr(agent_start, "_MORE_ERRORS_S", 0.1)
    launcher = Scripted(one=WAIT, two="import sys; sys.exit('too old')")
    with pytest.raises(LaunchError) as caught:
        start(launcher, start_timeout_s=10 * DEADLINE_S)
    assert "host 'two'" in str(caught.value)
    assert "host 'one'" not in str(caught.value)


def test_a_connection_that_takes_too_long_is_reported():
    launcher, ended = Scripted(), threading.Event()

    def hang(host, argv, timeout_s):
        ended.wait(DEADLINE_S)
        raise LaunchError("too late")

    launcher.start = hang
    with pytest.raises(LaunchError, match=r"host 'one': no connection within 0\.1 s"):
        start(launcher, start_timeout_s=0.1)
    ended.set()


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
