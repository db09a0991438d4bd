"""One running job: the event loop for agents, ranks, signals and timers."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

from bfrun.config import LaunchConfig
from bfrun.driver.agent_search import AgentSearch, LostAgents, search_limit_s
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.frame_router import FrameRouter
from bfrun.driver.host_arrivals import Arrival, HostArrivals
from bfrun.driver.host_discovery import HostDiscovery
from bfrun.driver.job_record import TOUCH_EVERY_S, HeldRecord
from bfrun.driver.leftovers import GUARD_LIMIT_S, Leftovers, await_guards
from bfrun.driver.membership import first_failure
from bfrun.driver.rank_output import RankOutput
from bfrun.driver.rank_supervisor import RankSupervisor
from bfrun.driver.shutdown import Action, Shutdown
from bfrun.driver.signals import SignalWatch, stop_myself
from bfrun.driver.start_frames import StartFrames
from bfrun.driver.stdin_source import StdinSource
from bfrun.driver.suspend import send_rest, suspend
from bfrun.driver.takeover import Takeover, reports_of
from bfrun.driver.trace_collector import TraceCollector
from bfrun.frames.agent_to_driver import (
    AgentEnded,
    ClockReading,
    StdinTaken,
    TracePiece,
)
from bfrun.frames.driver_to_agent import DropOutput, EndRanks, SignalRanks
from bfrun.frames.frame import Frame
from bfrun.output.printer import Printer
from bfrun.plan import LaunchPlan
from bfrun.silence import MARGIN_S
from bfrun.task import Task

_TICK_S = 0.25
_BACKLOG_TICK_S = 0.01
# Seconds in which agents must report what is left after they were told to end.
_ENDED_LIMIT_S = 3.0


class Job:
    """Drives the agents of one plan from their start to their end.

    Args:
        plan: The ranks of each host.
        config: Time limits and verbosity.
        sessions: One for each host of the plan, in order. The caller owns them.
        signals: Signals to the driver; the caller has entered it.
        make_printer: Called with the function that the printer must tell of output
            that it has shown.
        task: The call that ranks make, if they run no program.
        record: Record of the job, if it may detach.
        takeover: The history of a job that another driver has started, or None.
        make_search: Makes the search for an agent whose connection has ended. None if
            that means the end of its ranks.
        make_arrivals: Called with the function that shows a line to the user; returns
            what adds hosts that the discovery script names while the job runs. Their
            sessions are added to ``sessions``. None if no host is added.

    Attributes:
        interrupted_by: The signal with which the user has ended the job, or None.
        detached_by: Why the job goes on without this process, or "".
    """

    def __init__(
        self,
        plan: LaunchPlan,
        config: LaunchConfig,
        sessions: list[AgentSession],
        signals: SignalWatch,
        make_printer: Callable[[Callable[[int, int], None]], Printer],
        task: Task | None = None,
        *,
        record: HeldRecord | None = None,
        takeover: Takeover | None = None,
        make_search: Callable[[AgentSession], AgentSearch] | None = None,
        make_arrivals: Callable[[Callable[[str], None]], HostArrivals] | None = None,
    ) -> None:
        self._plan = plan
        self._config = config
        self._hosts = list(plan.hosts)
        self._sessions = sessions
        self._signals = signals
        self._starts: StartFrames | None = None
        self._task = task
        self._router = FrameRouter(plan, sessions)
        self._ranks_of = {
            session: [spec.rank for spec in host.processes]
            for host, session in zip(plan.hosts, sessions, strict=True)
        }
        self.printer = make_printer(self._on_shown)
        self._shutdown = Shutdown()
        self._ranks = RankSupervisor(
            plan, config, self._router, self._shutdown, self.printer.say, task
        )
        self.membership = self._ranks.membership
        self._output = RankOutput(
            self.printer, self._router, self._ranks.starts.has_ended
        )
        self._stdin = StdinSource() if config.stdin else None
        self._traces = _trace_collector(config, plan)
        self._discovery = None
        if config.host_discovery_script is not None:
            script = config.host_discovery_script
            self._discovery = HostDiscovery(script, self.printer.say)
        self._arrivals: HostArrivals | None = None
        if make_arrivals is not None:
            self._arrivals = make_arrivals(self.printer.say)
        self._end_deadline = 0.0
        self._left: dict[str, int] = {}
        self.interrupted_by: int | None = None
        self.detached_by = ""
        self._record = record
        self._takeover = takeover
        self._lost_agents: LostAgents | None = None
        if make_search is not None:
            self._lost_agents = LostAgents(
                make_search, self._ranks.agent_lost, self.printer.say
            )
        self._touch_at = 0.0
        self._selector = selectors.PollSelector()
        self._handlers: dict[type[Frame], Callable[[Any], None]] = {
            **self._ranks.handlers,
            **self._output.handlers,
            StdinTaken: self._on_stdin_taken,
            TracePiece: self._on_trace_piece,
        }

    # The loop

    def run(self) -> Leftovers | None:
        """Start, watch and end the ranks.

        Returns:
            The processes and hosts that are left; None if the job goes on without this
            driver.
        """
        if self._takeover is None:
            self._start_ranks()
        else:
            self._take_over(self._takeover)
        with self._selector:
            self._selector.register(self._signals.fd, selectors.EVENT_READ)
            for session in self._sessions:
                if not session.lost:
                    self._watch(session)
            while not self._finished():
                self._turn()
                if self.detached_by:
                    return None
        limit_s = GUARD_LIMIT_S
        if self._lost_agents is not None:
            config = self._config
            limit_s = search_limit_s(
                config.detached_limit_s or 0.0, config.link_timeout_s
            )
        leftovers = await_guards(self._sessions, self._left, limit_s)
        if self._traces is not None:
            self.printer.say(f"bfrun: {self._traces.finish()}")
        return leftovers

    @property
    def size(self) -> int:
        """Number of ranks of the job, of those that are missing, too."""
        return self._ranks.size

    def close(self) -> None:
        """Delete the collected traces, and end what looks for agents and hosts."""
        if self._lost_agents is not None:
            self._lost_agents.close()
        if self._discovery is not None:
            self._discovery.close()
        if self._arrivals is not None:
            self._arrivals.close()
        if self._traces is not None:
            self._traces.close()

    def _start_ranks(self) -> None:
        ready = self._sessions[0].ready
        assert ready is not None
        starts = StartFrames(
            self._plan,
            self._config,
            job=secrets.token_hex(8),
            secret=secrets.token_hex(32),
            master_port=ready.free_port,
            attach_key=self._record.record.key if self._record is not None else "",
            outlives_silence=self._lost_agents is not None,
        )
        self._starts = starts
        self._ranks.starts.start_with(starts)
        for host, session in zip(self._plan.hosts, self._sessions, strict=True):
            for part in self._task.frames() if self._task is not None else ():
                session.send(part)
            for frame in starts.of_host(host):
                session.send(frame)

    def _take_over(self, takeover: Takeover) -> None:
        """Learn what happened before, and act on it as an earlier driver would have."""
        self._ranks.replay(takeover.started, takeover.reports)
        for session, frame in takeover.news:
            self._take(session, frame)
        if takeover.is_to_end:
            self._interrupt(signal.SIGTERM)

    def _turn(self) -> None:
        """Wait for events, handle them, and do what is due."""
        self._router.flush()
        self._watch_stdin()
        tick_s = _BACKLOG_TICK_S if self._router.has_backlog else _TICK_S
        for key, _ in self._selector.select(tick_s):
            if isinstance(key.data, AgentSession):
                self._receive(key.data)
            elif key.fd == self._signals.fd:
                self._on_signals()
            elif self._stdin is not None:
                self._router.to_agent_of(0, self._stdin.read())
        self._router.acknowledge()
        now = time.monotonic()
        self._look_for_hosts()
        self._ranks.step(now)
        if self._traces is not None and (question := self._traces.question(now)):
            self._router.to_agents(question)
        self._watch_agents()
        self._touch_record(now)
        self._step(now)

    def _watch(self, session: AgentSession) -> None:
        self._selector.register(session.connection, selectors.EVENT_READ, session)

    def _unwatch(self, session: AgentSession) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(session.connection)

    def _look_for_hosts(self) -> None:
        """Ask the discovery script now and then which hosts the job may use."""
        if self._discovery is None or self._shutdown.has_begun:
            return
        starts, arrivals = self._ranks.starts, self._arrivals
        hosts = self._discovery.step()
        if hosts is not None:
            starts.use_hosts(hosts)
        if arrivals is not None:
            if hosts is not None:
                arrivals.keep(hosts)
            for arrival in arrivals.take():
                if starts.is_named(arrival.plan.host):
                    self._add_host(arrival)
                else:
                    arrivals.discard(arrival.session)
            arrivals.begin(starts.missing_hosts(arrivals.is_due), starts.hosts)

    def _add_host(self, arrival: Arrival) -> None:
        """Take over the agent on a new host, which gets ranks in the next steps."""
        assert self._starts is not None
        session = arrival.session
        host = self._ranks.starts.add_host(arrival.plan)
        self._hosts.append(host)
        self._sessions.append(session)
        self._ranks_of[session] = []
        self._watch(session)
        for frame in self._starts.of_host(host):
            session.send(frame)
        self.printer.say(f"bfrun: host {host.host.name} takes part in the job now")

    def _receive(self, session: AgentSession) -> None:
        frames = session.receive()
        if self._lost_agents is not None and self._lost_agents.is_back(session):
            self._reunite(session)
        for frame in frames:
            self._take(session, frame)
        if session.lost:
            self._unwatch(session)

    def _take(self, session: AgentSession, frame: Frame) -> None:
        """Act on a frame of an agent."""
        if isinstance(frame, AgentEnded):
            self._left[session.host.name] = frame.left
        elif isinstance(frame, ClockReading):
            if self._traces is not None:
                self._traces.take_reading(session.host.name, frame)
        else:
            self._handlers[type(frame)](frame)

    def _touch_record(self, now: float) -> None:
        if self._lost_agents is not None and now >= self._touch_at:
            assert self._record is not None
            self._touch_at = now + TOUCH_EVERY_S
            self._record.touch()

    def _watch_stdin(self) -> None:
        if self._stdin is None:
            return
        watched = self._stdin.fd in self._selector.get_map()
        if self._stdin.wants_more and not watched:
            self._selector.register(self._stdin.fd, selectors.EVENT_READ)
        elif watched and not self._stdin.wants_more:
            self._selector.unregister(self._stdin.fd)

    def _watch_agents(self) -> None:
        for host, session in zip(self._hosts, self._sessions, strict=True):
            ranks = self._ranks.starts.ranks_on(host.index)
            session.check()
            # Ranks that have not met end with the connection of their agent.
            if self._lost_agents is not None and self._ranks.has_met:
                self._look_for(session, ranks, self._lost_agents)
            elif session.lost and not session.ended:
                is_missing = self._ranks.starts.agent_lost(host.index)
                is_new = is_missing and not self._shutdown.has_begun
                if is_new and self._arrivals is not None:
                    self._arrivals.lost(host.host, session.why_lost())
                if self._has_rank(ranks):
                    noticed_after_s = MARGIN_S if session.silent else 0.0
                    self._ranks.agent_lost(ranks, session.why_lost(), noticed_after_s)
                if self._arrivals is not None:
                    self._unwatch(session)
                    self._arrivals.release(session)

    def _has_rank(self, ranks: list[int]) -> bool:
        return any(not self.membership.members[rank].ended for rank in ranks)

    def _look_for(
        self, session: AgentSession, ranks: list[int], lost_agents: LostAgents
    ) -> None:
        """Try to reach an agent again if its connection has ended."""
        was_lost = bool(session.lost)
        if was_lost:
            self._unwatch(session)
        lost_agents.step(session, ranks, time.monotonic())
        if was_lost and not session.lost:
            self._watch(session)

    def _reunite(self, session: AgentSession) -> None:
        """Go on with an agent that has been reached again."""
        ranks = self._ranks_of[session]
        self._router.note_repeated(ranks)
        for rank in ranks:
            # The agent sends its lines again from their beginnings.
            self._output.end_lines(rank)
        self._ranks.reunite(ranks, reports_of(session))
        if self._shutdown.ended:
            session.send(EndRanks())
        elif self.membership.ending:
            session.send(SignalRanks(signum=int(signal.SIGTERM)))

    def _has_no_rank(self) -> bool:
        """Return whether all ranks have ended, as far as the agents can be asked."""
        unreached = self._lost_agents.ranks if self._lost_agents is not None else ()
        return self.membership.all_ended_but(unreached)

    def _step(self, now: float) -> None:
        """Take the next step of the shutdown if it is due."""
        if self.printer.broken and not self.interrupted_by:
            if self._is_detaching:
                self.detached_by = self.detached_by or "the end of the terminal"
                return
            self._interrupt(signal.SIGPIPE)
        if self.interrupted_by is not None:
            self.detached_by = ""  # the job ends, so nobody could take it over
        if self.detached_by:
            return
        action = self._shutdown.step(now, self._has_no_rank())
        if action is Action.TERMINATE:
            if self.interrupted_by is None:
                self._tell_survivors()
            self.membership.ending = True
            self._router.to_agents(SignalRanks(signum=int(signal.SIGTERM)))
        elif action is Action.END:
            self.membership.ending = True
            self._end_deadline = now + _ENDED_LIMIT_S
            self._router.to_agents(EndRanks())

    def _tell_survivors(self) -> None:
        """Print and log why the ranks that have not failed are ended."""
        first = first_failure(self.membership.failures, {})
        survivors = self.membership.survivors
        if first is not None and survivors:
            text = f"bfrun: this rank is ended with SIGTERM, because {first.text}"
            self.printer.say(text, survivors)

    def _finished(self) -> bool:
        if not self._shutdown.ended:
            return False
        waiting = [s for s in self._sessions if not s.ended and not s.lost]
        if not waiting:
            return True
        # A slow terminal holds back output, which is not the agent's fault, and traces
        # may take as long as they keep arriving.
        now = time.monotonic()
        heard_at = now if self.printer.busy else 0.0
        if self._shutdown.leaves_output(now, self.printer.taken_at):
            self._router.to_agents(DropOutput())
            heard_at = 0.0
        if self._traces is not None:
            heard_at = max(heard_at, self._traces.heard_at)
        self._end_deadline = max(self._end_deadline, heard_at + _ENDED_LIMIT_S)
        return now > self._end_deadline

    # The user

    def leaves_output(self) -> bool:
        """Return whether to drop the rest of the output, after all ranks ended."""
        now = time.monotonic()
        for number in self._signals.take():
            if number == self._signals.SUSPEND:
                stop_myself()
            elif number != self._signals.NOTICE:  # no rank is left to be told
                self.interrupted_by = self.interrupted_by or number
                self._shutdown.interrupt(now)
        return self._shutdown.leaves_output(now, self.printer.taken_at)

    def _on_signals(self) -> None:
        for number in self._signals.take():
            if number == self._signals.SUSPEND:
                suspend(self._sessions)
            elif number == self._signals.NOTICE:
                self._ranks.give_notice(signal.Signals(number).name)
            elif number == signal.SIGHUP and self._may_detach:
                self.detached_by = "SIGHUP"
            else:
                self._interrupt(number)

    @property
    def _may_detach(self) -> bool:
        """Whether the job goes on if this process hangs up now."""
        return (
            self._record is not None
            and self._ranks.has_met
            and not self._shutdown.has_begun
        )

    @property
    def _is_detaching(self) -> bool:
        """Whether this process is about to hang up, and the job goes on."""
        has_no_terminal = self.printer.terminal_closed and self._may_detach
        return bool(self.detached_by) or has_no_terminal

    def detach(self) -> None:
        """Tell the agents how much output has been shown, and hang up."""
        self._router.acknowledge()
        send_rest(self._sessions)
        for session in self._sessions:
            session.connection.leave()

    def _interrupt(self, number: int) -> None:
        if self.interrupted_by is None:
            self.interrupted_by = number
            self._shutdown.interrupt(time.monotonic())
            name = signal.Signals(number).name
            self.printer.say(
                f"bfrun: {name}: ending all ranks; repeat it to kill them at once"
            )
        elif number != signal.SIGPIPE:
            self._shutdown.interrupt(time.monotonic())

    # Frames of the agents

    def _on_stdin_taken(self, frame: StdinTaken) -> None:
        if self._stdin is not None:
            self._stdin.taken(frame.nbytes)

    def _on_trace_piece(self, frame: TracePiece) -> None:
        if self._traces is not None:
            self._traces.take(frame)

    def _on_shown(self, rank: int, nbytes: int) -> None:
        """Note that output has been shown. Runs in the printer's thread."""
        if self.printer.broken and self._is_detaching:
            return  # nobody has read it, so the next driver shows it
        self._router.note_shown(rank, nbytes)
        self._signals.wake()


def _trace_collector(config: LaunchConfig, plan: LaunchPlan) -> TraceCollector | None:
    if config.timeline_filename is None:
        return None
    return TraceCollector(config.timeline_filename, plan.host_of_rank, len(plan.hosts))
