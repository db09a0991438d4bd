"""Checks hosts that the discovery script names while the job runs; starts their agents.

A thread does both, because they may take minutes. The driver's loop takes over each
agent once it is ready, and tells the user why a host gets no ranks.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bfrun.config import LaunchConfig
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.agent_start import AgentStart
from bfrun.driver.capacity import check_capacity, check_slots, make_room_for_logs
from bfrun.driver.host_retries import HostRetries
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher
from bfrun.launch.per_host import launcher_for
from bfrun.plan import HostFacts, HostPlan, LaunchPlan

_LOOK_S = 0.05
# Seconds for which the end of the driver waits for the thread.
_END_S = 2.0
# Seconds after which a lost agent is released. Until then its guard may report its end.
_RELEASE_S = 60.0


@dataclass(frozen=True)
class SurveyedHost:
    """A host that can take part in the job.

    Attributes:
        facts: Its cores and GPUs.
        addresses: Addresses at which all other hosts reach its ranks, best first.
    """

    facts: HostFacts
    addresses: tuple[str, ...]


class Survey(Protocol):
    """Asks hosts whether they can take part in the job."""

    def ask(
        self, config: LaunchConfig, known: Sequence[HostPlan], new: Sequence[Host]
    ) -> Mapping[Host, SurveyedHost | LaunchError]:
        """Return what is known of each new host, or why it cannot take part. Blocks.

        Args:
            config: Settings of the job.
            known: The hosts that take part.
            new: The new hosts.
        """

    def abort(self) -> None:
        """Have ``ask`` return soon. Safe to call from any thread."""


@dataclass(frozen=True)
class Arrival:
    """A host whose agent is ready.

    Attributes:
        plan: The host, without ranks. Its index has no meaning.
        session: The agent, owned by the taker of the arrival.
    """

    plan: HostPlan
    session: AgentSession


class HostArrivals:
    """The hosts that are being added to the job, one group of hosts at a time.

    Args:
        config: Settings of the job.
        survey: Asks new hosts. Called in a thread.
        say: Shows a line to the user. Called only by ``take``, ``lost`` and
            ``begin``.
        wake: Called in the thread when ``take`` has something to return.
        make_launcher: Returns a launcher for some hosts.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        config: LaunchConfig,
        survey: Survey,
        say: Callable[[str], None],
        wake: Callable[[], None],
        make_launcher: Callable[
            [LaunchConfig, Sequence[Host]], Launcher
        ] = launcher_for,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._survey = survey
        self._say = say
        self._wake = wake
        self._make_launcher = make_launcher
        self._clock = clock
        self._retries = HostRetries()
        self._thread: threading.Thread | None = None
        # Guards the fields below, which the thread shares.
        self._lock = threading.Lock()
        self._arrived: list[Arrival] = []
        self._failed: list[tuple[Host, str]] = []
        # The launchers of the agents that run.
        self._launchers: dict[AgentSession, Launcher] = {}
        self._is_closed = False
        # When lost agents are released.
        self._release_at: dict[AgentSession, float] = {}

    def is_due(self, host: Host) -> bool:
        """Return whether a host may be tried now, as it has not failed lately."""
        return self._retries.is_due(host, self._clock())

    def keep(self, named: Sequence[Host]) -> None:
        """Forget the failures of all hosts but these."""
        self._retries.keep(named)

    def lost(self, host: Host, why: str) -> None:
        """Note that the agent of a host is lost, so the host needs another one."""
        self._note_failure(host, f"its agent is lost: {_on_one_line(why)}")

    def release(self, session: AgentSession) -> None:
        """Close the connection of a lost agent once its guard has had time to end.

        Call it again and again, with agents of the start of the job, too.
        """
        now = self._clock()
        if now >= self._release_at.setdefault(session, now + _RELEASE_S):
            self._release_at[session] = math.inf
            self.discard(session)

    def discard(self, session: AgentSession) -> None:
        """Close a session and its launcher in a thread, as that may take a second."""
        with self._lock:
            launcher = self._launchers.pop(session, None)

        def close() -> None:
            session.close()
            if launcher is not None:
                launcher.close()

        try:
            threading.Thread(target=close, daemon=True).start()
        except RuntimeError:  # the system has no thread left
            close()

    def take(self) -> list[Arrival]:
        """Return the hosts whose agents have become ready, and tell of failures."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
            failed, self._failed = self._failed, []
        for arrival in arrived:
            self._retries.arrived(arrival.plan.host, self._clock())
        for host, why in failed:
            self._note_failure(host, why)
        return arrived

    def begin(self, wanted: Sequence[Host], known: Sequence[HostPlan]) -> None:
        """Begin to add hosts, unless others are being added.

        Args:
            wanted: The hosts, all due.
            known: The hosts that take part.
        """
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        with self._lock:
            has_news = self._arrived or self._failed
        if wanted and self._thread is None and not has_news:
            work = (list(wanted), list(known))
            thread = threading.Thread(target=self._run, args=work, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left
                for host in wanted:
                    self._note_failure(host, str(error))
            else:
                self._thread = thread

    def close(self) -> None:
        """Start no more agents, and end those that nobody has taken."""
        with self._lock:
            self._is_closed = True
        self._survey.abort()
        if self._thread is not None:
            # It may wait for a host that does not answer, where nothing runs yet.
            self._thread.join(_END_S)
        with self._lock:
            arrived, self._arrived = self._arrived, []
            launchers = list(self._launchers.values())
        for arrival in arrived:
            arrival.session.close()
        for launcher in launchers:
            launcher.close()

    def _note_failure(self, host: Host, why: str) -> None:
        wait_s = self._retries.failed(host, why, self._clock())
        if wait_s is not None:
            self._say(
                f"bfrun: warning: host {host.name} gets no ranks: {why}; trying it "
                f"again in {wait_s:g} s, and later less often"
            )

    # In the thread

    def _run(self, new: Sequence[Host], known: Sequence[HostPlan]) -> None:
        """Check hosts, and start their agents."""
        waiting = list(new)
        try:
            answers = self._survey.ask(self._config, known, new)
            plans: list[HostPlan] = []
            for host in new:
                try:
                    plans.append(self._plan(host, answers[host], [*known, *plans]))
                except LaunchError as error:
                    waiting.remove(host)
                    self._fail(host, error)
            self._start_agents(plans, waiting)
        except Exception as error:  # a defect must not end the job
            for host in waiting:
                self._fail(host, error)

    def _plan(
        self,
        host: Host,
        found: SurveyedHost | LaunchError,
        known: Sequence[HostPlan],
    ) -> HostPlan:
        """Return the plan of a host.

        Args:
            host: The host.
            found: The answer of its check.
            known: The hosts that take part, and others that are about to.

        Raises:
            LaunchError: The host, or this one, lacks something for its ranks.
        """
        if isinstance(found, LaunchError):
            raise found
        config = self._config
        slots = min(host.slots or 1, config.max_np or host.slots or 1)
        plan = HostPlan(0, host, (), found.addresses, slots=slots, facts=found.facts)
        check_slots(config, plan)
        if config.output_dir is not None:
            make_room_for_logs(slots + sum(each.slots for each in known))
        return plan

    def _start_agents(self, plans: Sequence[HostPlan], waiting: list[Host]) -> None:
        """Start agents, and hand over each as soon as it is ready.

        Args:
            plans: The hosts.
            waiting: Hosts that neither have arrived nor failed; kept up to date.
        """
        starts: dict[AgentStart, tuple[HostPlan, Launcher]] = {}
        if self._is_closed:
            return
        try:
            for plan in plans:
                launcher = self._make_launcher(self._config, [plan.host])
                start = AgentStart(plan.host, launcher, self._config, _do_nothing)
                starts[start] = plan, launcher
                start.thread.start()
            until = self._clock() + self._config.start_timeout_s
            while starts and not self._is_closed:
                is_late = self._clock() >= until
                for start, (plan, launcher) in list(starts.items()):
                    start.step()
                    if not (start.ready or start.failed or is_late):
                        continue
                    try:
                        self._settle(start, plan, launcher)
                    except LaunchError as error:
                        self._fail(plan.host, error)
                        _abandon(start, launcher)
                    del starts[start]
                    waiting.remove(plan.host)
                _await_news(list(starts))
        finally:
            for start, (_, launcher) in starts.items():
                _abandon(start, launcher)

    def _settle(self, start: AgentStart, plan: HostPlan, launcher: Launcher) -> None:
        """Hand over the agent of a host.

        Raises:
            LaunchError: The agent has not started, or the host cannot hold its ranks.
        """
        session = start.session
        if not start.ready or session is None:
            raise LaunchError(start.text())
        check_capacity(LaunchPlan((plan,)), [session])
        with self._lock:
            if self._is_closed:
                raise LaunchError("the job ends")
            self._launchers[session] = launcher
            self._arrived.append(Arrival(plan, session))
            self._wake()

    def _fail(self, host: Host, error: Exception) -> None:
        # The warning names the host already.
        why = _on_one_line(str(error).removeprefix(f"host '{host.name}': "))
        with self._lock:
            self._failed.append((host, why or type(error).__name__))
            if not self._is_closed:
                self._wake()


def _on_one_line(text: str) -> str:
    return text.replace("\n", "; ")


def _abandon(start: AgentStart, launcher: Launcher) -> None:
    start.abandon()
    launcher.close()


def _await_news(starts: Sequence[AgentStart]) -> None:
    """Wait a moment, or until an agent has something to say."""
    poll = select.poll()
    for start in starts:
        if start.session is not None and not start.session.lost:
            poll.register(start.session.connection, select.POLLIN)
    poll.poll(_LOOK_S * 1000)


def _do_nothing() -> None:
    """Ignore the news of a thread, because the loop looks often enough."""
