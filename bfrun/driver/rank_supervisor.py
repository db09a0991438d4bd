"""Supervises the ranks: acts on reports of agents and ranks, and informs others."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from bfrun.config import LaunchConfig
from bfrun.driver.admissions import Admissions
from bfrun.driver.frame_router import FrameRouter
from bfrun.driver.membership import Change, Membership
from bfrun.driver.rank_starts import RankStarts
from bfrun.driver.record_table import RecordTable
from bfrun.driver.shutdown import EXIT_S, Shutdown
from bfrun.driver.stall_tracker import StallTracker
from bfrun.errors import ProtocolError
from bfrun.frames.agent_to_driver import (
    FromRank,
    FromRankRefused,
    Inspection,
    RankExited,
    RankNotStarted,
    RankStarted,
    RankStopped,
    RankVanished,
)
from bfrun.frames.driver_to_agent import Inspect, SignalRanks
from bfrun.frames.driver_to_rank import (
    QueryPending,
    RankDamaged,
    RankFinished,
    RankFrozen,
    RankLost,
    StopNotice,
)
from bfrun.frames.frame import Frame, decode
from bfrun.frames.rank_to_agent import Hello
from bfrun.frames.rank_to_driver import (
    RANK_TO_DRIVER,
    Admits,
    AskToJoin,
    Failing,
    Goodbye,
    Joined,
    JoinReady,
    JoinRecord,
    Pending,
    Publish,
    RankApart,
    RankExcluded,
    Result,
    Stall,
    StopRequest,
    ThreadFailed,
)
from bfrun.plan import LaunchPlan
from bfrun.task import Task
from bfrun.wording import format_ranks

# By default, how long fewer ranks than --min-np may be left.
ELASTIC_TIMEOUT_S = 600.0

# An excluded rank must have said that it trains on within this time after the network
# has healed.
_SPLIT_S = 60.0
# The end of a process ends its links first, so the ranks may exclude it for that before
# its agent reports how it has ended. A large process takes half a second to end.
_EXIT_REPORT_S = 1.0


class RankSupervisor:
    """Keeps the membership, the rendezvous and the stalls of the ranks.

    Args:
        plan: The ranks of each host.
        config: Has the time within which ranks must meet, and what a failure does.
        router: Sends frames to agents and ranks.
        shutdown: Is told of failures.
        say: Shows a line to the user.
        task: Takes the results of ranks, if they run a function.
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
        self._hosts = plan.host_of_rank
        self.membership = Membership.of(self._hosts)
        self._router = router
        self._shutdown = shutdown
        self._say = say
        self._task = task
        self._config = config
        self._ends = False  # a failure ends the job
        self._replays = False
        self._has_given_notice = False
        # Told to all ranks, and again to ranks that may have missed it.
        self._announced: list[RankLost | RankFinished] = []
        self._warnings: set[str] = set()
        # Since when fewer ranks are left than the user wants.
        self._too_few_since: float | None = None
        # Exclusions that other ranks have reported, and the times until which the
        # excluded ranks may report another reason, or that they train on apart.
        self._doubts: dict[int, tuple[float, RankExcluded]] = {}
        self._lineages: set[str] = set()
        # When the processes of lost ranks are killed, by rank.
        self._kill_at: dict[int, float] = {}
        self._records = RecordTable(plan.world_size, config.start_timeout_s)
        self._admissions = Admissions(plan.world_size)
        self.starts = RankStarts(
            plan, config, self.membership, self._admissions, router, say
        )
        self._stalls = StallTracker(self._hosts)
        self.handlers: dict[type[Frame], Callable[[Any], None]] = {
            RankStarted: self._on_started,
            RankNotStarted: self._on_not_started,
            Hello: self._on_hello,
            FromRank: self._on_frame_of_rank,
            FromRankRefused: self._on_refused,
            RankExited: self._on_exited,
            RankVanished: self._on_vanished,
            RankStopped: self._on_stopped,
            Inspection: self._on_inspection,
        }

    @property
    def size(self) -> int:
        """Number of ranks of the job, of those that are missing, too."""
        return self._admissions.size

    @property
    def has_met(self) -> bool:
        """Whether all ranks have met, so that the job may outlive this driver."""
        return self._records.has_met

    def replay(self, started: float, reports: Sequence[tuple[float, Frame]]) -> None:
        """Take over a running job: act on the reports that earlier drivers have got.

        Args:
            started: When the job started, on the clock ``time.monotonic``.
            reports: The reports in order, each with the time of its arrival.
        """
        self._records.has_met = True
        self.membership.started = started
        self._act_on(reports)
        for frame in self._announced:
            self._router.to_all_ranks(frame)

    def reunite(
        self, ranks: Sequence[int], reports: Sequence[tuple[float, Frame]]
    ) -> None:
        """Go on with ranks whose agent has been reached again.

        Args:
            ranks: The ranks.
            reports: As for ``replay``, from this agent. Most have been acted on.
        """
        known = len(self._announced)
        self._act_on(reports)
        for frame in self._announced[:known]:
            self._router.to_ranks(ranks, frame)
        for frame in self._announced[known:]:
            self._router.to_all_ranks(frame)
        if self._has_given_notice:
            self._router.to_ranks(ranks, StopNotice())

    def _act_on(self, reports: Sequence[tuple[float, Frame]]) -> None:
        """Act on reports as at the time of their arrival, but tell no rank yet.

        Kill those that others have excluded, because such a rank must not learn that it
        alone is left.
        """
        self._replays = True
        for at, frame in reports:
            self.membership.clock = _fixed_clock(at)
            self.handlers[type(frame)](frame)
        self.membership.clock = time.monotonic
        self._replays = False
        self._kill_lost(time.monotonic())

    def step(self, now: float) -> None:
        """Answer ranks whose rendezvous or stall query has timed out."""
        self._router.answer(self._records.expire(now))
        for rank, why in self._admissions.take_stranded().items():
            self._say(f"bfrun: rank {rank} cannot join, and is started again: {why}")
            self._kill_at[rank] = now
        self._kill_lost(now)
        self._exclude_doubted(now)
        self._count(now)
        self.starts.give_up()
        if not (self._ends or self.membership.ending):
            for rank in self.starts.step(now):
                self._kill_at.pop(rank, None)
                self._hosts[rank] = self.membership.members[rank].host
                if self._task is not None:
                    self._task.forget(rank)
        if not self._stalls.asked:
            return
        members = self.membership.members.values()
        alive = {member.rank for member in members if not member.ended}
        for rank, report in self._stalls.reports(alive, now):
            self._router.to_ranks([rank], report)

    def agent_lost(
        self,
        ranks: list[int],
        reason: str,
        noticed_after_s: float,
        *,
        is_certain: bool = True,
    ) -> None:
        """Note that some ranks are lost with their agent.

        Args:
            ranks: The ranks.
            reason: Why the agent is lost.
            noticed_after_s: Seconds since then.
            is_certain: Whether they have ended for certain. If not, the other ranks are
                not told, because they would go on without them.
        """
        changes = self.membership.agent_lost(ranks, reason)
        self._announce(changes, noticed_after_s, tells_ranks=is_certain)

    def give_notice(self, why: str) -> None:
        """Tell all ranks, once, that the job will be ended soon."""
        if not self._has_given_notice:
            self._has_given_notice = True
            self._router.to_all_ranks(StopNotice())
            self._say(f"bfrun: {why}: told all ranks that the job will be ended soon")

    def _announce(
        self,
        changes: Sequence[Change],
        noticed_after_s: float = 0.0,
        *,
        tells_ranks: bool = True,
    ) -> None:
        """Tell every rank of the changes, and act on them."""
        for frame in changes:
            if tells_ranks and not self._replays:
                self._router.to_all_ranks(frame)
            if isinstance(frame, (RankDamaged, RankFrozen)):
                if not (self._replays and frame.text in self._warnings):
                    self._say(f"bfrun: {frame.text}")
                self._warnings.add(frame.text)
                continue
            if tells_ranks:
                self._announced.append(frame)
            if isinstance(frame, RankLost):
                self._on_lost(frame, noticed_after_s)
            else:
                self.starts.finished(frame.rank)
            why = frame.text or f"rank {frame.rank} on {frame.host} had finished"
            self._router.answer(self._records.rank_ended(frame.rank, why))
            self._doubts.pop(frame.rank, None)
            has_finished = isinstance(frame, RankFinished)
            self._router.answer(self._admissions.ended(frame.rank, has_finished))

    def _on_lost(self, frame: RankLost, noticed_after_s: float) -> None:
        """Let the other ranks go on without a rank, or start the end of the job."""
        now = time.monotonic()
        told = any(f.rank == frame.rank and f.told for f in self.membership.failures)
        survives = (
            self._config.on_failure == "continue"
            and not self._ends
            and self._records.has_met
            and self.membership.outlive(frame.rank)
        )
        if survives:
            self._say(f"bfrun: {frame.text}; {self.starts.rest}")
            self._kill_at[frame.rank] = now + EXIT_S
            self.starts.lost(frame.rank, now)
            return
        if told:
            self._shutdown.expect(frame.rank, now)
        else:
            self._shutdown.fail(now, noticed_after_s)
        if not self._ends:
            self._ends = True
            self._say(f"bfrun: {frame.text}; ending the other ranks")

    def _count(self, now: float) -> None:
        """End the job if too few ranks have been left for too long."""
        least, limit_s = self._config.min_np or 1, self._config.elastic_timeout_s
        if limit_s is None:
            limit_s = ELASTIC_TIMEOUT_S
        left = len(self.membership.remaining)
        if left >= least or self._ends or self.membership.ending:
            self._too_few_since = None
            return
        size = self._admissions.size
        few = f"{left} of {size} ranks are left, fewer than --min-np {least}"
        if self._too_few_since is None:
            self._too_few_since = now
            self._say(f"bfrun: {few}; the job ends if that lasts for {limit_s:g} s")
        elif now - self._too_few_since >= limit_s:
            self._ends = True
            self._say(f"bfrun: {few}, for {limit_s:g} s; ending the other ranks")
            self.membership.fail_all()
            self._shutdown.fail(now)

    def _kill_lost(self, now: float) -> None:
        """Kill processes of lost ranks that have not ended in time."""
        for rank, at in list(self._kill_at.items()):
            if self.membership.members[rank].ended:
                del self._kill_at[rank]
            elif now >= at and self._router.reaches(rank):
                del self._kill_at[rank]
                frame = SignalRanks(signum=int(signal.SIGKILL), ranks=[rank])
                self._router.to_agent_of(rank, frame)

    def _on_moved(self, rank: int, said: Joined) -> None:
        # A rank that has changed may call init again before the newcomers have.
        self._records.returned(self._admissions.joining, self._admissions.size)
        has_joined, answers = self._admissions.moved(rank, said.generation)
        if rank in self._doubts:
            _, doubt = self._doubts[rank]
            if doubt.generation < said.generation:  # from an earlier world
                del self._doubts[rank]
        if has_joined:
            process = self.membership.joined(rank)
            self.starts.joined(rank)
            self._say(f"bfrun: {process} has joined; {self.starts.rest}")
        self._router.answer(answers)

    # Reports of agents

    def _on_started(self, frame: RankStarted) -> None:
        self.membership.command_started(frame.rank, frame.pid)

    def _on_not_started(self, frame: RankNotStarted) -> None:
        self.starts.not_started(frame.rank)
        self._announce(self.membership.not_started(frame.rank, frame.error))

    def _on_hello(self, frame: Hello) -> None:
        self.membership.hello(frame.rank, frame.pid)
        if self._has_given_notice:  # it was not connected then
            self._router.to_ranks([frame.rank], StopNotice())

    def _on_exited(self, frame: RankExited) -> None:
        self._announce(self.membership.exited(frame.rank, frame.status, frame.oom))
        self._shutdown.exited(frame.rank, time.monotonic())

    def _on_vanished(self, frame: RankVanished) -> None:
        self._announce(self.membership.vanished(frame.rank, frame.pid))
        self._shutdown.exited(frame.rank, time.monotonic())

    def _on_stopped(self, frame: RankStopped) -> None:
        if frame.event == "failed":
            self._announce(self.membership.froze_too_long(frame.rank, frame.seconds))
            if frame.rank in self._kill_at:  # it must not continue alone
                self._kill_at[frame.rank] = 0.0
        elif frame.event == "frozen":
            self._announce(self.membership.frozen(frame.rank, frame.seconds))
        elif not self.membership.ending:
            self._say(f"bfrun: rank {frame.rank} runs again")

    def _on_excluded(self, teller: int, said: RankExcluded) -> None:
        """Kill a rank without which the others have agreed to go on."""
        membership = self.membership
        # A newcomer may be excluded while it takes over the state.
        is_running = said.rank in membership.survivors
        is_this = is_running and said.stay == membership.members[said.rank].stay
        if teller not in membership.remaining or not is_this:
            return
        if self._config.partition == "both" and said.cause != "stopped":
            # It says so itself if it trains on. Others that train apart do not know.
            is_apart = {teller, said.rank} & self._admissions.apart
            if not is_apart and self._admissions.doubt(said.rank, said.generation):
                self._doubt(said, self._config.link_timeout_s + _SPLIT_S)
        elif said.cause == "broken" and not self._replays:
            self._doubt(said, _EXIT_REPORT_S)
        else:
            self._exclude(said)

    def _doubt(self, said: RankExcluded, limit_s: float) -> None:
        """Exclude a rank after a time, unless it reports something else first."""
        until = time.monotonic() + limit_s
        self._doubts.setdefault(said.rank, (until, said))

    def _exclude(self, said: RankExcluded) -> None:
        self._announce(self.membership.excluded(said.rank, said.cause, said.seconds))
        if said.rank in self._kill_at:
            self._kill_at[said.rank] = 0.0

    def _exclude_doubted(self, now: float) -> None:
        """Kill excluded ranks that have reported nothing else in time."""
        for until, said in list(self._doubts.values()):
            if now >= until:
                del self._doubts[said.rank]
                self._exclude(said)

    def _on_apart(self, rank: int, said: RankApart) -> None:
        """Have a rank join again that trains on apart from the others."""
        self._doubts.pop(rank, None)
        if rank not in self.membership.survivors:
            return  # it was lost, and is to be started again
        if said.lineage not in self._lineages:
            self._lineages.add(said.lineage)
            self._say(
                f"bfrun: {format_ranks(said.members, noun=True)} could not reach the "
                f"others, and trained on in the lineage {said.lineage}"
            )
        self._router.answer(
            self._admissions.split(rank, said.lineage, said.generation, said.members)
        )

    def _on_inspection(self, frame: Inspection) -> None:
        self._stalls.inspected(frame.id, frame.ranks)

    # Frames of ranks

    def _on_frame_of_rank(self, frame: FromRank) -> None:
        """Act on a frame of a rank. No frame of a rank may harm the driver."""
        try:
            said = decode(frame.frame, f"rank {frame.rank}", RANK_TO_DRIVER)
            self._on_said(frame.rank, said)
        except ProtocolError as error:
            self._say(f"bfrun: {error}")

    def _on_refused(self, frame: FromRankRefused) -> None:
        self._say(
            f"bfrun: rank {frame.rank} sent an invalid '{frame.frame_kind}': "
            f"{frame.error}"
        )

    def _on_said(self, rank: int, said: Frame) -> None:
        now = time.monotonic()
        if isinstance(said, Publish):
            self._router.answer(
                self._records.publish(rank, said.round, said.record, now)
            )
        elif isinstance(said, Goodbye):
            self.membership.goodbye(rank)
        elif isinstance(said, Failing):
            if rank in self._doubts and self._config.partition != "both":
                self._exclude(self._doubts[rank][1])  # its error is a consequence
            returning = self._admissions.apart & self._admissions.joining
            is_returning = rank in returning
            self._announce(
                self.membership.failing(rank, said, is_returning=is_returning)
            )
        elif isinstance(said, RankExcluded):
            self._on_excluded(rank, said)
        elif isinstance(said, RankApart):
            self._on_apart(rank, said)
        elif isinstance(said, ThreadFailed):
            self._announce(self.membership.damaged(rank, said.thread, said.error))
        elif isinstance(said, Stall):
            query = self._stalls.ask(rank, said.op, now)
            if query is not None:
                self._router.to_all_ranks(QueryPending(id=query))
                self._router.to_agents(Inspect(id=query))
        elif isinstance(said, StopRequest):
            self.give_notice(f"rank {rank} has got a signal")
        elif isinstance(said, AskToJoin):
            self._router.answer(self._admissions.asked(rank))
        elif isinstance(said, Admits):
            answers = self._admissions.set_willing(
                rank, said.willing, said.grows, said.has_ended
            )
            self._router.answer(answers)
            if said.willing:
                self.starts.is_willing(rank)
        elif isinstance(said, JoinRecord):
            self._router.answer(
                self._admissions.publish(rank, said.generation, said.record)
            )
        elif isinstance(said, JoinReady):
            self._router.answer(self._admissions.ready(rank, said.generation))
        elif isinstance(said, Joined):
            self._on_moved(rank, said)
        elif isinstance(said, Pending):
            self._stalls.pending(rank, said.id, said.ops)
        elif isinstance(said, Result):
            if self._task is None:
                raise ProtocolError(
                    f"rank {rank} sent a 'result', but bfrun runs a program: only "
                    "functions that bfrun.run starts have results"
                )
            self._task.take(rank, said)


def _fixed_clock(at: float) -> Callable[[], float]:
    return lambda: at
