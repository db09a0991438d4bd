"""The agent: starts the ranks of one machine, streams their output, ends them.

One thread does everything, because the kernel ties a rank's life to the thread that
started it (PR_SET_PDEATHSIG). The driver's frames arrive on standard input, and the
agent's leave on standard output. If the driver is lost, the agent ends its ranks, or
waits for another driver first; if the agent is lost, its guard ends the ranks.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from bfrun.agent.attach_server import AttachServer
from bfrun.agent.driver_connection import DriverConnection, drop_errors
from bfrun.agent.family import Family
from bfrun.agent.limits import raise_file_limit
from bfrun.agent.machine import clock_reading, ready_frame
from bfrun.agent.oom import OomWatch
from bfrun.agent.output_pump import OutputPump
from bfrun.agent.rank_process import RankProcess
from bfrun.agent.rank_server import RankServer
from bfrun.agent.rank_watch import RankWatch
from bfrun.agent.report_history import ReportHistory
from bfrun.agent.signals import SignalPipe
from bfrun.agent.start_queue import StartQueue
from bfrun.agent.stdin_feed import StdinFeed
from bfrun.agent.trace_pump import TracePump
from bfrun.channel import Message, text_to_bytes
from bfrun.errors import ProtocolError
from bfrun.frames.agent_to_driver import (
    AgentEnded,
    Attached,
    FromRank,
    FromRankRefused,
    Inspection,
    RankExited,
    RankNotStarted,
    RankStarted,
    StdinTaken,
)
from bfrun.frames.agent_to_rank import TaskPart, Welcome
from bfrun.frames.driver_to_agent import (
    DropOutput,
    EndRanks,
    Inspect,
    OutputShown,
    ReadClock,
    SignalRanks,
    Start,
    StdinData,
    ToRanks,
)
from bfrun.frames.driver_to_rank import RecordList, RecordsMissing
from bfrun.frames.frame import Frame
from bfrun.frames.rank_to_agent import Hello
from bfrun.frames.rank_to_driver import Goodbye

# If the driver is lost, ranks get SIGTERM, and SIGKILL this much later.
ORPHAN_GRACE_S = 1.0
_TICK_S = 0.25


def main(marker: bytes, folder: str, beat_fd: int, guard_pid: int) -> int:
    """Serve one driver until it hangs up, and return the agent's exit status."""
    file_limit = raise_file_limit()
    agent = Agent(marker, folder, beat_fd, guard_pid, file_limit)
    agent.run()
    return 0


class Agent:
    """The agent of one machine."""

    def __init__(
        self,
        marker: bytes,
        folder: str,
        beat_fd: int,
        guard_pid: int,
        file_limit: int,
    ):
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._connection = DriverConnection(
            marker, beat_fd, self._selector, self._on_driver
        )
        self._task: list[str] = []
        self._server = RankServer(
            folder, self._selector, self._welcome, self._on_rank_message, self._task
        )
        self._output = OutputPump(self._selector, self._connection)
        self._traces = TracePump(folder, self._connection)
        self._nonce = secrets.token_hex(8)
        self._oom = OomWatch()
        self._job: Start | None = None
        self._starts = StartQueue(self._server.path, file_limit, self._rank_started)
        self._ranks: dict[int, RankProcess] = {}
        # Ranks that have ended, but whose output may still come.
        self._draining: list[RankProcess] = []
        self._watch = RankWatch(self._ranks, self._connection)
        self._stdin: StdinFeed | None = None
        self._signals = SignalPipe(self._selector)
        self._family = Family(guard_pid)
        self._ending = False
        self._left = 0
        self._said_ended = False
        self._has_signalled = False
        self._orphaned = False
        self._kill_at: float | None = None
        self._done = False
        self._attach_server: AttachServer | None = None
        self._have_met = False
        # When the job ends if no driver has attached; None with a driver.
        self._detached_until: float | None = None
        self._ready = ready_frame(guard_pid, folder)
        self._handlers: dict[type[Frame], Callable[[Any], None]] = {
            Start: self._start,
            TaskPart: self._take_task,
            ToRanks: self._to_ranks,
            OutputShown: self._output_shown,
            StdinData: self._feed_stdin,
            SignalRanks: self._signal,
            Inspect: self._inspect,
            ReadClock: self._read_clock,
            EndRanks: self._end,
            DropOutput: self._drop_output,
        }

    def run(self) -> None:
        """Serve until the job has ended and the driver has hung up."""
        self._signals.catch()
        self._connection.send(self._ready)
        try:
            while not self._done:
                self._starts.step()
                self._connection.flush()
                self._traces.step()
                for key, mask in self._selector.select(self._timeout_s()):
                    key.data(mask)
                self._tick()
        finally:
            self._family.kill()
            for rank in self._ranks.values():
                rank.reap()
            self._server.close()
            if self._attach_server is not None:
                self._attach_server.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._family.wake_guard()

    # Frames of the driver

    def _on_driver(self, frame: Frame) -> None:
        self._handlers[type(frame)](frame)

    def _start(self, frame: Start) -> None:
        """Queue ranks of this machine; each turn of the loop starts a few of them."""
        self._job = frame
        self._connection.set_link_timeout(frame.link_timeout_s)
        if frame.detached_limit_s and self._attach_server is None:
            self._prepare_to_detach(frame.attach_key)
        self._starts.add(frame)
        # Rank 0 is the first, and its input may come with the next frame.
        self._starts.step()

    def _rank_started(self, rank: RankProcess, error: str | None) -> None:
        self._ranks[rank.rank] = rank
        if error is not None:
            self._connection.send(RankNotStarted(rank=rank.rank, error=error))
            return
        self._connection.send(RankStarted(rank=rank.rank, pid=rank.pid))
        self._output.watch(rank)
        if rank.stdin_fd is not None:
            self._stdin = StdinFeed(rank, self._selector, self._stdin_taken)

    def _drop_starts(self) -> None:
        """Drop the ranks that have not been started, because the job ends."""
        for rank in self._starts.drop():
            error = "the job ended before its turn came"
            self._connection.send(RankNotStarted(rank=rank, error=error))

    def _take_task(self, frame: TaskPart) -> None:
        self._task.append(frame.data)

    def _to_ranks(self, frame: ToRanks) -> None:
        self._server.send(frame.ranks or self._ranks, frame.frame)
        history = self._connection.history
        if history is None:
            return
        kind = frame.frame["type"]
        if kind in (RecordList.kind, RecordsMissing.kind):
            history.answered(frame.frame["round"])
            self._have_met = self._have_met or kind == RecordList.kind

    def _output_shown(self, frame: OutputShown) -> None:
        self._output.acknowledge(self._ranks[frame.rank], frame.nbytes)

    def _feed_stdin(self, frame: StdinData) -> None:
        if self._stdin is not None:
            self._stdin.feed(text_to_bytes(frame.data), frame.end)

    def _stdin_taken(self, nbytes: int) -> None:
        self._connection.send(StdinTaken(nbytes=nbytes))

    def _signal(self, frame: SignalRanks) -> None:
        if frame.ranks is not None:
            pids = [self._ranks[r].pid for r in frame.ranks if r in self._ranks]
            self._family.signal_below(pids, frame.signum)
            return
        self._has_signalled = True
        self._drop_starts()
        self._family.signal(frame.signum)

    def _inspect(self, frame: Inspect) -> None:
        ranks = self._watch.inspection()
        self._connection.send(Inspection(id=frame.id, ranks=ranks))

    def _read_clock(self, frame: ReadClock) -> None:
        """Answer at once with the time on this machine's clock."""
        self._connection.send(clock_reading(frame.sent_ns))
        self._connection.flush()

    def _end(self, frame: EndRanks) -> None:
        """Kill what is left; ``ended`` follows when all output has been sent."""
        self._ending = True
        self._drop_starts()
        self._left = len(self._family.kill())
        self._poll_ranks()

    def _drop_output(self, frame: DropOutput) -> None:
        """Drop output that nobody reads; the ranks have ended."""
        for rank in self._ranks.values():
            self._output.drop(rank)

    # Messages of the ranks

    def _welcome(self, number: int, pid: int) -> Welcome | str:
        rank = self._ranks.get(number)
        if rank is None or rank.status is not None:
            return (
                f"rank {number} does not run on this machine; "
                f"ranks here: {sorted(self._ranks)}"
            )
        rank.hello_pid = pid
        rank.said_goodbye = False
        self._connection.send(Hello(rank=number, pid=pid))
        welcome = rank.spec.welcome
        return welcome.replace(
            socket_dir=self._folder, machine=f"{welcome.host}#{self._nonce}"
        )

    def _on_rank_message(self, number: int, message: Message) -> None:
        """Pass a message of a rank on to the driver, which checks it."""
        if number not in self._ranks:
            return
        if message["type"] == Goodbye.kind:
            self._ranks[number].said_goodbye = True
        try:
            self._connection.send(FromRank(rank=number, frame=message))
        except (ProtocolError, RecursionError) as error:
            # It fits into a frame, but not into a frame inside another one.
            kind = message["type"][:99]
            refusal = FromRankRefused(rank=number, frame_kind=kind, error=str(error))
            self._connection.send(refusal)

    # Without a driver

    def _prepare_to_detach(self, key: str) -> None:
        """Keep what another driver needs, and let one attach."""
        self._connection.history = ReportHistory()
        self._output.keep()
        self._attach_server = AttachServer(
            self._folder, key, self._selector, self._attach
        )

    @property
    def _may_detach(self) -> bool:
        """Whether the job goes on if the driver hangs up now."""
        is_ending = self._ending or self._has_signalled or self._orphaned
        return self._attach_server is not None and self._have_met and not is_ending

    def _detach(self, now: float) -> None:
        """Go on without a driver until another one attaches, or the time is up."""
        assert self._job is not None
        self._connection.detach()
        if self._job.outlives_silence:
            drop_errors()
        self._output.detach(self._ranks.values())
        self._detached_until = now + self._job.detached_limit_s

    def _attach(self, driver: socket.socket) -> None:
        """Serve another driver, and tell it what has happened so far.

        It has locked the record of the job, so the earlier driver has ended.
        """
        history = self._connection.history
        now = time.monotonic()
        self._notice_hang_up(now)
        if history is None or not self._may_detach:
            driver.close()
            return
        if self._connection.is_attached:
            self._detach(now)
        self._detached_until = None
        self._connection.attach(driver)
        self._connection.send(self._ready)
        for past in history.replay():
            # A record that is as large as a frame does not fit into another one.
            with contextlib.suppress(ProtocolError):
                self._connection.send(past)
        self._connection.send(Attached(age_s=history.age_s))
        self._output.attach(self._ranks.values())

    # Timers and the end

    def _timeout_s(self) -> float:
        if self._traces.ready or self._starts:
            return 0.0
        is_due_soon = (
            bool(self._draining) or self._watch.holds or self._kill_at is not None
        )
        return 0.05 if is_due_soon else _TICK_S

    def _tick(self) -> None:
        self._poll_ranks()
        if self._job is not None:
            self._watch.sample(self._job.failure_timeout_s)
        for rank in self._draining:
            if rank.streams and rank.lingered() and self._output.may_read(rank):
                self._output.finish(rank)
        self._draining = [rank for rank in self._draining if rank.streams]
        if self._ending and not self._said_ended and not self._sending():
            self._said_ended = True
            self._connection.send_bulk(AgentEnded(left=self._left))
        if self._attach_server is not None:
            self._attach_server.drop_late()
        self._watch_driver()

    def _sending(self) -> bool:
        """Return whether output, traces or ends of ranks are still to be sent."""
        streaming = any(rank.streams for rank in self._ranks.values())
        streaming = streaming or self._output.has_kept
        return streaming or self._traces.busy or self._watch.holds

    def _poll_ranks(self) -> None:
        if self._orphaned or self._signals.terminated:
            # Ranks that end now are not to blame: the agent ended them, or the signal
            # that ends the agent did.
            return
        for rank in self._watch.poll():
            self._draining.append(rank)
            self._output.check_closed(rank)
        for rank in self._watch.due(at_once=self._ending or self._has_signalled):
            self._tell_exit(rank)

    def _tell_exit(self, rank: RankProcess) -> None:
        # A goodbye that is still in the socket must be sent before the exit.
        self._server.drop_rank(rank.rank)
        if rank.stdin_fd is not None and self._stdin is not None:
            self._stdin.close()
        assert rank.status is not None
        killed = rank.status == -signal.SIGKILL
        self._connection.send(
            RankExited(
                rank=rank.rank,
                pid=rank.pid,
                status=rank.status,
                oom=self._oom.evidence() if killed else None,
            )
        )
        self._traces.add(rank.rank)

    def _notice_hang_up(self, now: float) -> None:
        """Detach if the driver has hung up without ending the job."""
        if self._attach_server is None or not self._has_hung_up():
            return
        # It may have told the agent to end the job before it hung up.
        self._connection.read_rest()
        if self._may_detach:
            self._detach(now)

    def _has_hung_up(self) -> bool:
        """Return whether the driver has hung up, or is silent and counts as ended."""
        outlives_silence = self._job is not None and self._job.outlives_silence
        connection = self._connection
        ended = connection.lost() if outlives_silence else connection.ended
        return connection.is_attached and ended

    def _has_no_driver(self, now: float) -> bool:
        """Return whether to end the ranks, because nobody drives them."""
        is_late = self._detached_until is not None and now >= self._detached_until
        return self._signals.terminated or is_late or self._connection.lost()

    def _watch_driver(self) -> None:
        """End the ranks if the driver is lost, and stop once nothing is left to do."""
        now = time.monotonic()
        self._notice_hang_up(now)
        if not self._orphaned and self._has_no_driver(now):
            self._orphaned = True
            self._starts.drop()
            if self._signals.terminated:
                print(
                    "bfrun's agent: got SIGTERM, perhaps because its guard died; "
                    "ending its ranks",
                    file=sys.stderr,
                )
            self._family.signal(signal.SIGTERM)
            self._kill_at = now + ORPHAN_GRACE_S
        self._done = (
            (self._kill_at is not None and now > self._kill_at)
            or (self._said_ended and self._connection.idle)
            or (self._orphaned and not self._family.alive())
        )
