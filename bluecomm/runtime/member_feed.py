"""Passes the decisions of a job's members on to the program.

The engines of the ranks agree who is left (docs/membership.md). Each tells its program
in the same order as all others, so ``Members`` changes alike on all ranks that are
left. The launcher is told of ranks that have been excluded, and kills them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from bfrun.frames.rank_to_driver import RankApart, RankExcluded
from bfrun.wording import format_ranks
from bluecomm.errors import BluecommError
from bluecomm.runtime.members import PRIMARY

if TYPE_CHECKING:
    from bluecomm._native import Engine, MemberChange
    from bluecomm.config import Config
    from bluecomm.runtime.members import Members
    from bluecomm.runtime.rendezvous.rendezvous import Rendezvous

_log = logging.getLogger("bluecomm")

# How long the launcher may take to say how a process has ended. Only the text and the
# kind of the event depend on it.
_REASON_S = 2.0
# A rank that cannot go on for less than this logs nothing.
_HOLD_WARNING_S = 1.0
# Causes for which a rank that may still run is excluded; see native/engine/member_news.
_EXCLUDED = ("stopped", "silent", "broken")


class FedWorld(Protocol):
    """The parts of a world that its feed uses."""

    rank: int
    size: int
    config: Config
    rendezvous: Rendezvous
    members: Members

    @property
    def engine(self) -> Engine:
        """The native engine."""


class MemberFeed:
    """Thread that tells ``Members`` of the changes on which the engines have agreed.

    Args:
        world: Its world, whose engine has been started.
    """

    def __init__(self, world: FedWorld) -> None:
        self._world = world
        self._reports: dict[int, tuple[str, str]] = {}
        self._reported = threading.Condition()
        self._closing = False
        self._held_since: float | None = None
        self._has_warned = False
        self._thread = threading.Thread(
            target=self._run, name="bluecomm-members", daemon=True
        )
        self._thread.start()

    def report(self, rank: int, kind: str, text: str) -> None:
        """Note the launcher's report of the end of a rank, for the event's text."""
        with self._reported:
            self._reports.setdefault(rank, (kind, text))
            self._reported.notify_all()

    def stop(self) -> None:
        """Pass on nothing more, because the engine is about to be closed."""
        with self._reported:
            self._closing = True
            self._reported.notify_all()

    def join(self) -> None:
        """Wait for the thread. The engine has been closed."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closing:
            change = self._world.engine.next_member_change(self._patience_s())
            if change is not None:
                self._take(change)
            elif self._held_since is not None:
                self._go_on_holding(time.monotonic() - self._held_since)
            else:
                return  # the engine is closed

    def _patience_s(self) -> float:
        """Return how long to wait for the next change."""
        return float("inf") if self._held_since is None else _HOLD_WARNING_S

    def _take(self, change: MemberChange) -> None:
        if change["kind"] == "gone":
            self._remove(change)
        elif change["kind"] == "split":
            self._split(change["cause"])
        elif change["kind"] == "held":
            self._world.members.is_held = True
            self._held_since = time.monotonic()
        elif change["kind"] == "released":
            self._world.members.is_held = False
            self._held_since = None
            if self._has_warned and self._world.members.lineage == PRIMARY:
                _log.warning("rank %d reaches the others again", self._world.rank)
            self._has_warned = False
        else:
            self._held_since = None
            if self._world.rank not in self._reports:  # otherwise the monitor said so
                _log.error("%s", change["text"])

    def _remove(self, change: MemberChange) -> None:
        rank, cause = change["rank"], change["cause"]
        splits = self._world.rendezvous.assignment.splits
        if cause in _EXCLUDED or (splits and cause == ""):
            self._tell_launcher(change)
        elif cause != "apart":
            with self._reported:
                self._reported.wait_for(
                    lambda: rank in self._reports or self._closing, _REASON_S
                )
        kind = "finished" if cause == "left" else "lost"
        kind, text = self._reports.get(rank, (kind, change["text"]))
        self._world.members.remove(rank, kind, text)

    def _split(self, lineage: str) -> None:
        """Go on with the ranks that are left, and have the launcher know."""
        world = self._world
        left = world.members.left
        text = (
            f"rank {world.rank} cannot reach the other ranks; it trains on in the "
            f"lineage {lineage}, which has {format_ranks(left, noun=True)}"
        )
        _log.log(logging.WARNING if world.rank == left[0] else logging.INFO, "%s", text)
        world.members.split(lineage, text)
        agent = world.rendezvous.agent
        if agent is not None:
            frame = RankApart(
                lineage=lineage,
                generation=world.rendezvous.assignment.epoch,
                members=list(left),
            )
            with contextlib.suppress(BluecommError):  # its reading thread reports it
                agent.send(frame)

    def _tell_launcher(self, change: MemberChange) -> None:
        agent = self._world.rendezvous.agent
        if agent is not None:
            frame = RankExcluded(
                rank=change["rank"],
                cause=change["cause"],
                seconds=change["silent_s"],
                stay=self._world.rendezvous.assignment.stays[change["rank"]],
                generation=self._world.rendezvous.assignment.epoch,
            )
            with contextlib.suppress(BluecommError):  # its reading thread reports it
                agent.send(frame)

    def _go_on_holding(self, held_s: float) -> None:
        limit_s = self._world.config.hold_timeout_s
        if held_s >= limit_s:
            self._held_since = None
            self._world.engine.leave_members(
                f"for {limit_s:g} s (BLUECOMM_HOLD_TIMEOUT_S), rank {self._world.rank} "
                f"has reached too few of the {self._world.size} ranks to go on without "
                "the others; check the network between its host and theirs"
            )
        elif not self._has_warned:
            self._has_warned = True
            _log.warning(
                "rank %d reaches too few of the other ranks to go on; it waits for "
                "them for up to %g s",
                self._world.rank,
                limit_s,
            )
