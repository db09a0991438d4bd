"""Watches a rank's outstanding requests: warnings, deadlines, news of lost peers.

A dead rank and a silent rank are treated differently. The agent reports a *dead* rank,
and requests that wait for it fail at once. A *silent* rank that is alive may be busy:
requests that wait for it are reported after 10, 60 and 300 s, and their deadlines are
extended while it uses its processor.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol

from bfrun.frames.driver_to_rank import (
    QueryPending,
    RankDamaged,
    RankFinished,
    RankFrozen,
    RankLost,
    StallTable,
    StopNotice,
)
from bfrun.frames.frame import Frame
from bfrun.frames.parts import OutstandingOperation
from bfrun.frames.rank_to_driver import Pending, Stall
from bluecomm.errors import BluecommError
from bluecomm.runtime.call import FAREWELL
from bluecomm.runtime.deadline_policy import DeadlinePolicy
from bluecomm.runtime.failure import MISMATCH
from bluecomm.runtime.rendezvous.agent_connection import AgentLost, News
from bluecomm.runtime.stall import StallReport

if TYPE_CHECKING:
    from bluecomm._native import Engine, PendingRequest
    from bluecomm.config import Config
    from bluecomm.runtime.member_feed import MemberFeed
    from bluecomm.runtime.notice import Notice
    from bluecomm.runtime.peers import PeerRecord
    from bluecomm.runtime.rendezvous.rendezvous import Rendezvous

_log = logging.getLogger("bluecomm")

_TICK_S = 0.5
_WARN_AFTER_S = (10.0, 60.0, 300.0)
# How long the last messages of a rank that has ended may still be on their way.
_LAST_BYTES_S = 0.5


class WatchedWorld(Protocol):
    """The parts of a world that its monitor uses."""

    rank: int
    config: Config
    rendezvous: Rendezvous
    peers: list[PeerRecord]
    notice: Notice
    # Passes on who is left, in a job that survives losses.
    member_feed: MemberFeed | None
    # Whether the program uses another world than this one.
    is_spare: bool

    @property
    def engine(self) -> Engine:
        """The native engine."""

    def reap(self) -> None:
        """Free the tensors of operations that have finished."""

    def blocks_program(self, number: int) -> bool:
        """Return whether the only thread that ever waited waits for an operation."""

    def is_waited_for(self, number: int) -> bool:
        """Return whether a thread of this process waits for an operation."""

    def is_standing(self, number: int) -> bool:
        """Return whether an operation waits for what may come at any time."""

    def has_hard_deadline(self, number: int) -> bool:
        """Return whether the caller gave an operation's deadline."""


class Monitor:
    """Daemon thread that watches the requests of one world."""

    def __init__(self, world: WatchedWorld) -> None:
        self._world = world
        self._policy = DeadlinePolicy(world.config.operation_timeout_s)
        self._stop = threading.Event()
        self._awake = threading.Event()
        self._awake.set()
        self._warned: collections.Counter[int] = collections.Counter()
        # Warning that waits for the agent's table: id, and number of other stalls.
        self._unreported: tuple[int, int] | None = None
        self._ask_again_at = 0.0
        self._finished: collections.deque[tuple[float, int, str]] = collections.deque()
        self._agent = world.rendezvous.agent
        self._news = world.rendezvous.news
        self._stays = world.rendezvous.assignment.stays
        self._thread = threading.Thread(
            target=self._run, name="bluecomm-monitor", daemon=True
        )
        self._thread.start()
        if self._news is not None:
            self._news.listen(self._on_news)

    def suspend(self) -> None:
        """Stop watching until ``resume``; news of lost peers still arrives."""
        self._awake.clear()

    def resume(self) -> None:
        """Continue to watch."""
        self._awake.set()

    def close(self) -> None:
        """Stop watching."""
        if self._news is not None:
            self._news.listen(None)
        self._stop.set()
        self._awake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        tick_s = min(_TICK_S, self._policy.ask_every_s)
        while not self._stop.wait(tick_s):
            self._awake.wait()
            if self._stop.is_set():
                return
            self._world.reap()
            self._pass_on_finished()
            self._look_at(self._world.engine.pending())

    def _pass_on_finished(self) -> None:
        """Report ranks that succeeded to the engine, after their last messages."""
        while self._finished and self._finished[0][0] < time.monotonic():
            _, rank, text = self._finished.popleft()
            self._world.engine.peer_lost(rank, text)

    def _look_at(self, pending: list[PendingRequest]) -> None:
        for number in self._warned.keys() - {one["id"] for one in pending}:
            del self._warned[number]
        due = [operation for operation in pending if self._is_due(operation)]
        for operation in due:
            self._warned[operation["id"]] += 1
        if due:
            self._warn(due)
        elif self._agent is not None and time.monotonic() >= self._ask_again_at:
            near = [operation for operation in pending if self._is_near(operation)]
            if near:
                self._ask(self._foremost(near))

    def _is_due(self, operation: PendingRequest) -> bool:
        warnings = self._warned[operation["id"]]
        return (
            operation["name"] != FAREWELL  # others may take as long as they want
            and not self._world.is_standing(operation["id"])
            and warnings < len(_WARN_AFTER_S)
            and operation["age_s"] >= _WARN_AFTER_S[warnings]
        )

    def _is_near(self, operation: PendingRequest) -> bool:
        """Return whether a request's deadline is near and may be extended."""
        stands = self._world.has_hard_deadline(operation["id"])
        return not stands and self._policy.is_near(operation["age_s"])

    def _foremost(self, operations: list[PendingRequest]) -> PendingRequest:
        """Return the request that the program waits for, or the oldest one."""
        return max(
            operations,
            key=lambda one: (self._world.is_waited_for(one["id"]), one["age_s"]),
        )

    def _warn(self, due: list[PendingRequest]) -> None:
        """Warn about stalled requests, with a table once the agent has sent it."""
        operation = self._foremost(due)
        if self._warned[operation["id"]] == len(_WARN_AFTER_S):
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        if self._agent is None:
            report = StallReport.alone(self._world.rank, operation, len(due) - 1)
            _log.warning("%s", report)
        else:
            self._unreported = operation["id"], len(due) - 1
            self._ask(operation)

    def _ask(self, operation: PendingRequest) -> None:
        """Ask the agent what all ranks do."""
        self._ask_again_at = time.monotonic() + self._policy.ask_every_s
        self._tell(Stall(op=operation["name"]))

    def _tell(self, frame: Frame) -> None:
        assert self._agent is not None
        with contextlib.suppress(BluecommError):  # the reading thread reports it
            self._agent.send(frame)

    # -- news, on the agent connection's thread ---------------------------------------

    def _on_news(self, news: News) -> None:
        if isinstance(news, (RankLost, RankFinished)):
            if news.rank >= len(self._stays) or news.stay != self._stays[news.rank]:
                return  # a process of another generation
            if isinstance(news, RankLost):
                self._on_lost(news.rank, news.text)
            else:
                self._on_finished(news.rank)
        elif isinstance(news, (RankDamaged, RankFrozen)):
            _log.warning("%s", news.text)
        elif isinstance(news, StopNotice):
            self._world.notice.give()
        elif isinstance(news, QueryPending):
            if not self._world.is_spare:
                self._answer(news)
        elif isinstance(news, StallTable):
            self._on_stall_table(news)
        elif isinstance(news, AgentLost):
            self._on_agent_lost(news)

    def _on_lost(self, rank: int, text: str) -> None:
        if self._world.member_feed is not None:
            self._world.member_feed.report(rank, "lost", text)
        if rank != self._world.rank:
            self._world.engine.peer_lost(rank, text)
            return
        _log.error("the launcher considers this rank lost: %s", text)
        if self._world.member_feed is not None:
            # It must not take part in decisions that rely on its end.
            self._world.engine.leave_members(f"the launcher ends this rank: {text}")

    def _on_finished(self, rank: int) -> None:
        peer = self._world.peers[rank]
        text = f"rank {rank} on {peer.host} (pid {peer.pid}) had finished (exit 0)"
        if rank != self._world.rank:
            self._finished.append((time.monotonic() + _LAST_BYTES_S, rank, text))
            if self._world.member_feed is not None:
                self._world.member_feed.report(rank, "finished", text)

    def _answer(self, query: QueryPending) -> None:
        operations = [
            OutstandingOperation(
                name=operation["name"],
                kind=operation["kind"],
                group=operation["group"],
                age_s=operation["age_s"],
                waiting_for=list(operation["waiting_for"]),
                wish=operation["wish"],
                blocking=self._blocks(operation),
            )
            for operation in self._world.engine.pending()
            if not self._is_unattended(operation)
        ]
        self._tell(Pending(id=query.id, ops=operations))

    def _on_stall_table(self, table: StallTable) -> None:
        unreported, others = self._unreported or (0, 0)
        self._unreported = None
        for operation in self._world.engine.pending():
            number = operation["id"]
            is_due = number == unreported
            report = StallReport.from_table(
                self._world.rank, operation, table, others if is_due else 0
            )
            if is_due:
                _log.warning("%s", report)
            with contextlib.suppress(ValueError):  # it may be released by now
                patience_s = self._world.config.link_timeout_s
                if self._blocks(operation) and (
                    cycle := report.find_cycle(
                        patience_s, groups_last=self._world.member_feed is None
                    )
                ):
                    self._world.engine.fail(number, MISMATCH, cycle)
                elif self._is_near(operation) and report.excuses_all(
                    self._policy.busy_within_s
                ):
                    self._world.engine.extend_deadline(number, self._policy.extension_s)

    def _is_unattended(self, operation: PendingRequest) -> bool:
        """Return whether nobody waits for a request, which stands for a given time."""
        number = operation["id"]
        return self._world.is_standing(number) and self._world.has_hard_deadline(number)

    def _blocks(self, operation: PendingRequest) -> bool:
        """Return whether the program blocks in an operation that others must call.

        False for calls about windows, which other ranks do not have to call.
        """
        return not operation["wish"] and self._world.blocks_program(operation["id"])

    def _on_agent_lost(self, news: AgentLost) -> None:
        """End this process, which must not outlive its launcher."""
        if self._stop.is_set():
            return
        _log.error("%s; rank %d ends", news.text, self._world.rank)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
