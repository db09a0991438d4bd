"""Starts ranks while the job runs, and has ranks leave whose slots are to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.driver.admissions import Admissions
from bfrun.driver.frame_router import FrameRouter
from bfrun.driver.membership import Membership
from bfrun.driver.respawn import FIRST_WAIT_S, HostSlot
from bfrun.driver.slots import Slots
from bfrun.driver.start_frames import StartFrames
from bfrun.errors import LaunchError
from bfrun.frames.driver_to_agent import SignalRanks
from bfrun.frames.driver_to_rank import LeaveNotice
from bfrun.hosts import Host
from bfrun.plan import HostPlan, LaunchPlan
from bfrun.wording import format_ranks

# Seconds in which a rank must leave whose slot is to end. Then it is killed.
LEAVE_S = 30.0
# Seconds after these in which the process of a rank that has shut down must end. The
# end of an interpreter with torch takes long on a busy machine.
EXIT_S = 60.0


class RankStarts:
    """The ranks that are started while the job runs, and those that must leave it.

    Args:
        plan: The hosts, and the ranks of the start.
        config: Whether lost ranks are started again, and whether the job may grow.
        membership: Knows which ranks run.
        admissions: Knows whether the ranks can let others in.
        router: Sends frames to agents and ranks.
        say: Shows a line to the user.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        config: LaunchConfig,
        membership: Membership,
        admissions: Admissions,
        router: FrameRouter,
        say: Callable[[str], None],
    ) -> None:
        self._hosts = list(plan.hosts)
        self._lost_hosts: set[int] = set()
        # The hosts that the job may use, as the discovery script named them last.
        self._named: Sequence[Host] = ()
        self._config = config
        self._membership = membership
        self._admissions = admissions
        self._router = router
        self._say = say
        self._starts: StartFrames | None = None
        slot_of = {
            spec.rank: HostSlot(host.index, number)
            for host in plan.hosts
            for number, spec in enumerate(host.processes)
        }
        most = config.max_np if config.may_grow else len(slot_of)
        wait_s = config.respawn_after_s
        self._slots = Slots(slot_of, most, FIRST_WAIT_S if wait_s is None else wait_s)
        if config.may_grow:
            self._slots.use(
                HostSlot(host.index, number)
                for host in plan.hosts
                for number in range(host.slots)
            )
        # Slots in which a process has taken part in the job.
        self._proven = set(slot_of.values())
        # When ranks that must leave are killed, by rank.
        self._leaving: dict[int, float] = {}

    def start_with(self, starts: StartFrames) -> None:
        """Take the frames with which ranks are started."""
        self._starts = starts

    def use_hosts(self, hosts: Sequence[Host]) -> None:
        """Use these hosts from now on, as the discovery script has named them."""
        self._named = hosts
        plans = self._plans()
        listed = []
        for host in hosts:
            plan = plans.get((host.user, host.name))
            if plan is not None:
                numbers = range(host.slots or 0)
                listed += [HostSlot(plan.index, number) for number in numbers]
        self._slots.use(listed)

    @property
    def hosts(self) -> list[HostPlan]:
        """The hosts that have agents."""
        return [plan for plan in self._hosts if plan.index not in self._lost_hosts]

    def missing_hosts(self, is_due: Callable[[Host], bool]) -> list[Host]:
        """Return the hosts that the job may use and needs, but that have no agents.

        Args:
            is_due: Whether a host may be tried now. Others take its part until then.
        """
        plans, most = self._plans(), self._config.max_np
        missing, slots = [], 0
        for host in self._named:
            if most is not None and slots >= most:
                break
            numbers = range(host.slots or 0)
            plan = plans.get((host.user, host.name))
            if plan is not None:
                every = [HostSlot(plan.index, number) for number in numbers]
                slots += sum(not self._slots.is_closed(slot) for slot in every)
            elif is_due(host):
                missing.append(host)
                slots += len(numbers)
        return missing

    def add_host(self, host: HostPlan) -> HostPlan:
        """Use a host whose agent is ready, and return its plan with its index."""
        host = replace(host, index=len(self._hosts))
        self._hosts.append(host)
        self.use_hosts(self._named)
        return host

    def is_named(self, host: Host) -> bool:
        """Return whether the job may use a host, whatever its slots are."""
        return any(
            (each.user, each.name) == (host.user, host.name) for each in self._named
        )

    def _plans(self) -> dict[tuple[str | None, str], HostPlan]:
        return {(plan.host.user, plan.host.name): plan for plan in self.hosts}

    def ranks_on(self, host: int) -> list[int]:
        """Return the ranks on a host, whether they still run or not."""
        return self._slots.ranks_on(host)

    def lost(self, rank: int, now: float) -> None:
        """Note that the process of a rank is lost, and the job goes on."""
        if self._leaving.pop(rank, None) is not None:
            # Its slot was to end, so the loss says nothing against the slot.
            self._slots.left(rank)
        elif self._config.respawn and (why := self._slots.lost(rank, now)):
            self._say(f"bfrun: {why}")

    def finished(self, rank: int) -> None:
        """Note that a rank has ended without failing."""
        if self._leaving.pop(rank, None) is not None:
            process = self._membership.leave(rank)
            self._slots.left(rank)
            self._say(f"bfrun: {process} has left; {self.rest}")

    def has_ended(self, rank: int) -> None:
        """Note that all output of a rank's last process has been received."""
        self._slots.has_ended(rank)

    def not_started(self, rank: int) -> None:
        """Note that the command of a rank could not be started."""
        self._slots.close(self._slots.slot_of(rank))

    def agent_lost(self, host: int) -> bool:
        """Note that the agent of a host is lost, so nobody can start ranks there.

        Returns:
            Whether that is news, and the job may use the host still.
        """
        is_named = self.is_named(self._hosts[host].host)
        is_missing = host not in self._lost_hosts and is_named
        self._lost_hosts.add(host)
        self._slots.close_host(host)
        for rank in self._slots.ranks_on(host):
            self._slots.has_ended(rank)
        return is_missing

    def joined(self, rank: int) -> None:
        """Note that a rank has joined the job."""
        self._proven.add(self._slots.slot_of(rank))

    def is_willing(self, rank: int) -> None:
        """Note that a rank can now be told to leave."""
        if rank in self._leaving:
            self._router.to_ranks([rank], LeaveNotice())

    @property
    def rest(self) -> str:
        """With how many ranks the job goes on, as a phrase."""
        left = len(self._membership.remaining)
        return f"the job goes on with {left} of {self._admissions.size} ranks"

    def step(self, now: float) -> list[int]:
        """Start ranks that are due, and have others leave.

        Returns:
            The ranks that it has started.
        """
        if not self._config.respawn:
            return []
        self._ask_to_leave(now)
        if self._starts is None or not self._admissions.is_possible:
            return []
        may_grow = self._config.may_grow and self._admissions.may_grow
        members = self._membership.members
        started = []
        for rank, slot in self._slots.due(
            now, may_grow=may_grow, size=self._admissions.size
        ):
            if rank in members and not members[rank].ended:
                continue
            if not self._start(self._starts, rank, slot, now):
                break  # the next turn has another slot for this number
            started.append(rank)
        return started

    def give_up(self) -> None:
        """Kill newcomers that can no longer join, as all other ranks have ended."""
        if self._config.respawn:
            for rank in self._membership.give_up():
                self._kill(rank)

    def _start(
        self, starts: StartFrames, rank: int, slot: HostSlot, now: float
    ) -> bool:
        """Start a rank in a slot, unless the host lacks something for it."""
        host = self._hosts[slot.host]
        membership = self._membership
        is_new = rank not in membership.members
        is_elsewhere = is_new or slot.host != self._slots.slot_of(rank).host
        stay = 1 if is_new else membership.members[rank].stay + 1
        try:
            if self._config.may_grow:
                size = max(self._admissions.size, rank + 1)
                frame = starts.newcomer(host, slot.number, rank, stay, size)
            else:
                frame = starts.again(rank, stay)
        except LaunchError as error:
            self._slots.close(slot)
            self._say(f"bfrun: a slot of {host.host.name} stays empty: {error}")
            return False
        membership.start_newcomer(
            rank, host.host.name, is_on_trial=slot not in self._proven
        )
        self._slots.started(rank, slot, now)
        self._admissions.respawned(rank, stay)
        self._router.move(rank, slot.host)
        where = f" on {host.host.name}" if is_elsewhere else ""
        self._say(f"bfrun: starting rank {rank}{'' if is_new else ' again'}{where}")
        self._router.to_agent_of(rank, frame)
        return True

    def _ask_to_leave(self, now: float) -> None:
        """Have ranks leave whose slots are to end, but never all ranks at once."""
        members = self._membership.members
        for rank, at in self._leaving.items():
            more_s = EXIT_S if members[rank].said_goodbye else 0.0
            if now >= at + more_s:
                self._leaving[rank] = float("inf")
                limit_s = LEAVE_S + more_s
                self._say(f"bfrun: rank {rank} has not left within {limit_s:g} s")
                self._kill(rank)
        unlisted = self._slots.unlisted()
        if not unlisted:
            return
        taking_part = self._membership.remaining
        asked = [
            rank
            for rank in unlisted
            if rank not in self._leaving and not members[rank].ended
        ]
        # Ranks that leave do so even if their slots are listed again.
        staying = {
            rank
            for rank in taking_part
            if rank not in self._leaving and not members[rank].ended
        }
        if not staying - set(unlisted):
            # The last rank has the state that others need.
            last = min(staying, default=-1)
            asked = [rank for rank in asked if rank != last]
        if not asked:
            return
        self._say(
            f"bfrun: {format_ranks(asked, noun=True)} must leave, because the hosts no "
            "longer have slots for them"
        )
        for rank in asked:
            self._leaving[rank] = now + LEAVE_S
            if members[rank].is_joining:
                self._kill(rank)
            else:
                self._router.to_ranks([rank], LeaveNotice())

    def _kill(self, rank: int) -> None:
        frame = SignalRanks(signum=int(signal.SIGKILL), ranks=[rank])
        self._router.to_agent_of(rank, frame)
