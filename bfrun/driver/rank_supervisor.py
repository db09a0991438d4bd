"""What becomes of the ranks: what agents report of them, and who is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from bfrun.channel import Frame
from bfrun.config import LaunchConfig
from bfrun.driver.frame_router import FrameRouter
from bfrun.driver.membership import Membership
from bfrun.driver.record_table import RecordTable
from bfrun.driver.shutdown import Shutdown
from bfrun.driver.stall_tracker import StallTracker
from bfrun.errors import ProtocolError
from bfrun.plan import LaunchPlan
from bfrun.task import Task


class RankSupervisor:
    """Keeps the ranks' membership, rendezvous and stalls.

    Args:
        plan: Who runs where.
        config: The time within which ranks must meet.
        router: Carries frames to agents and ranks.
        shutdown: Told of failures.
        say: Shows a line to the user.
        task: Takes the results of ranks, if they run no program.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        config: LaunchConfig,
        router: FrameRouter,
        shutdown: Shutdown,
        say: Callable[[str], None],
        task: Task | None,
    ) -> None:
        hosts = plan.host_of_rank
        self.membership = Membership.of(hosts)
        self._router = router
        self._shutdown = shutdown
        self._say = say
        self._task = task
        self._records = RecordTable(plan.world_size, config.start_timeout_s)
        self._stalls = StallTracker(hosts)
        self.handlers: dict[str, Callable[[Frame], None]] = {
            "started": self._on_started,
            "start_failed": self._on_start_failed,
            "hello": self._on_hello,
            "rank": self._on_rank,
            "exited": self._on_exited,
            "vanished": self._on_vanished,
            "freeze": self._on_freeze,
            "inspection": self._on_inspection,
        }

    def step(self, now: float) -> None:
        """Answer ranks that have waited long enough: at rendezvous, or in a stall."""
        self._router.answer(self._records.expire(now))
        members = self.membership.members.values()
        alive = {member.rank for member in members if not member.ended}
        for rank, report in self._stalls.reports(alive, now):
            self._router.to_ranks([rank], report)

    def agent_lost(self, ranks: list[int], reason: str) -> None:
        """Note that nothing will be heard of some ranks any more."""
        self._announce(self.membership.agent_lost(ranks, reason))

    def _announce(self, frames: list[Frame]) -> None:
        """Tell every rank of a change, and act on it."""
        for frame in frames:
            self._router.to_all_ranks(frame)
            text = frame.get("text", "")
            if frame["type"] == "lost":
                self._shutdown.fail(time.monotonic())
            if frame["type"] == "frozen":
                self._say(f"bfrun: {text}")
            elif frame["type"] == "lost" and len(self.membership.failures) == 1:
                self._say(f"bfrun: {text}; ending the other ranks")
            if frame["type"] in ("lost", "finished"):
                why = text or f"rank {frame['rank']} on {frame['host']} had finished"
                self._router.answer(self._records.rank_ended(frame["rank"], why))

    # What agents say of ranks

    def _on_started(self, frame: Frame) -> None:
        self.membership.born(frame["rank"], frame["pid"])

    def _on_start_failed(self, frame: Frame) -> None:
        self._announce(self.membership.not_started(frame["rank"], frame["error"]))

    def _on_hello(self, frame: Frame) -> None:
        self.membership.hello(frame["rank"], frame["pid"])

    def _on_exited(self, frame: Frame) -> None:
        rank, status, oom = frame["rank"], frame["status"], frame["oom"]
        self._announce(self.membership.exited(rank, status, oom))

    def _on_vanished(self, frame: Frame) -> None:
        self._announce(self.membership.vanished(frame["rank"], frame["pid"]))

    def _on_freeze(self, frame: Frame) -> None:
        rank, seconds = frame["rank"], frame["seconds"]
        if frame["event"] == "failed":
            self._announce(self.membership.froze_too_long(rank, seconds))
        elif frame["event"] == "frozen":
            self._announce(self.membership.frozen(rank, seconds))
        elif not self.membership.ending:
            self._say(f"bfrun: rank {rank} goes on")

    def _on_inspection(self, frame: Frame) -> None:
        self._stalls.inspected(frame["id"], frame["ranks"])

    # What ranks say themselves

    def _on_rank(self, frame: Frame) -> None:
        """Handle what a rank itself said; nothing it says may harm the driver."""
        rank, said = frame["rank"], frame["frame"]
        try:
            self._on_said(rank, said)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            ProtocolError,
        ) as error:
            self._say(f"bfrun: rank {rank} sent an invalid '{said['type']}': {error!r}")

    def _on_said(self, rank: int, said: Frame) -> None:
        now = time.monotonic()
        if said["type"] == "publish":
            number, record = int(said["round"]), said["record"]
            self._router.answer(self._records.publish(rank, number, record, now))
        elif said["type"] == "goodbye":
            self.membership.goodbye(rank)
        elif said["type"] == "stall":
            query = self._stalls.ask(rank, str(said["op"]), now)
            if query is not None:
                self._router.to_all_ranks({"type": "query_pending", "id": query})
                self._router.to_agents({"type": "inspect", "id": query})
        elif said["type"] == "pending":
            self._stalls.pending(rank, said["id"], said["ops"])
        elif said["type"] == "result" and self._task is not None:
            self._task.take(rank, said)
        else:
            raise ValueError("unknown type")
