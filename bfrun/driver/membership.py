"""Records which ranks are alive, which have ended, and which failed. Does no I/O.

The driver passes on the reports of the agents. Each method returns the frames that
every rank must get; a rank that waits for a lost rank then raises an error naming it.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bfrun.frames.driver_to_rank import RankDamaged, RankFinished, RankFrozen, RankLost
from bfrun.frames.rank_to_driver import Failing

# A change of one rank's state, which the driver reports to all ranks.
Change = RankLost | RankFinished | RankFrozen | RankDamaged

# Exit statuses that shells use for a command that could not be started.
NOT_STARTED_CODE = 127
AGENT_LOST_CODE = 1


@dataclass
class Member:
    """One rank, from its start to its end.

    Attributes:
        rank: The rank.
        host: Name of its host.
        pid: The process that speaks for it, or the command if none does yet.
        said_goodbye: Whether it has shut down cleanly.
        status: Exit status of the command, negative for a signal; None before its end.
        announced: Whether the other ranks have been told of its end.
        ended: Whether the agent can report nothing more about it, such as a status.
        stay: Number of its process, 0 for the one with which the job began.
        is_joining: Whether it was started while the job ran, and has not joined it yet.
        is_on_trial: Whether no process of its slot has ever taken part in the job, so
            that its errors may be those of a machine.
        has_left: Whether it has left the job because its slot was to end.
    """

    rank: int
    host: str
    pid: int = 0
    said_goodbye: bool = False
    status: int | None = None
    announced: bool = False
    ended: bool = False
    stay: int = 0
    is_joining: bool = False
    is_on_trial: bool = False
    has_left: bool = False


@dataclass(frozen=True)
class Failure:
    """The failure of one rank.

    Attributes:
        rank: The rank.
        cause: A short text such as ``SIGKILL``, ``exit 3`` or ``agent lost``.
        text: One sentence with rank, host and pid.
        exit_code: Exit code of the job if this is the first failure.
        at_s: Seconds since the start of the job.
        hint: Evidence of a deeper cause, such as the out-of-memory killer.
        told: Whether the rank itself reported the failure before its process ended.
        peers: Lost ranks that the rank's error names.
        error: The error that the rank itself reported, with 0 for each number. If a
            mistake in the program is the cause, other ranks report the same one.
        stay: Number of the rank's process that has failed.
    """

    rank: int
    cause: str
    text: str
    exit_code: int
    at_s: float
    hint: str | None = None
    told: bool = False
    peers: tuple[int, ...] = ()
    error: str = ""
    stay: int = 0


@dataclass
class Membership:
    """The members of one job, and their failures.

    Attributes:
        members: Members by rank.
        failures: Failures that end the job, in order of arrival, at most one for each
            rank.
        losses: Failures that the job has survived, likewise.
        ending: Whether the driver is ending the ranks; their ends are not failures.
    """

    members: dict[int, Member]
    failures: list[Failure] = field(default_factory=list)
    losses: list[Failure] = field(default_factory=list)
    ending: bool = False
    clock: Callable[[], float] = time.monotonic
    started: float = field(default=0.0)

    @classmethod
    def of(cls, hosts: Mapping[int, str]) -> Membership:
        """Return the membership of ranks (keys) on hosts (values), not yet started."""
        members = {rank: Member(rank, host) for rank, host in hosts.items()}
        return cls(members, started=time.monotonic())

    @property
    def all_ended(self) -> bool:
        """Whether every rank has ended."""
        return all(member.ended for member in self.members.values())

    def all_ended_but(self, unreached: Collection[int]) -> bool:
        """Return whether no rank is left that the job waits for.

        It does not wait for lost ranks in ``unreached``, whose agents cannot report how
        their processes have ended.
        """
        return all(
            member.ended or (member.announced and member.rank in unreached)
            for member in self.members.values()
        )

    @property
    def survivors(self) -> list[int]:
        """The ranks that run and have not failed."""
        alive = (member.rank for member in self.members.values() if not member.ended)
        return [rank for rank in alive if rank not in self._failed]

    @property
    def remaining(self) -> list[int]:
        """The ranks that have not failed or left, whether they still run or not.

        Ranks that were started while the job ran count once they have joined.
        """
        failed = self._failed
        return [
            rank
            for rank, member in self.members.items()
            if not (rank in failed or member.is_joining or member.has_left)
        ]

    @property
    def left(self) -> list[int]:
        """The ranks that have left because their slots were to end."""
        return [rank for rank, member in self.members.items() if member.has_left]

    @property
    def _failed(self) -> dict[int, Failure]:
        """The failures of the ranks' last processes."""
        return {
            failure.rank: failure
            for failure in [*self.losses, *self.failures]
            if failure.stay == self.members[failure.rank].stay
        }

    def outlive(self, rank: int) -> bool:
        """Decide whether the other ranks go on after the failure of a rank.

        They do not if none is left, or if another rank, or an earlier process of this
        one, has reported the same error, because such an error is a mistake in the
        program. Then all failures of this kind, or all failures if no rank is left, are
        those that end the job.

        Returns:
            Whether they go on; the failure is then among the losses.
        """
        failure = next(one for one in self.failures if one.rank == rank)
        same = [known for known in self.losses if known.error == failure.error != ""]
        if same or not self.remaining:
            causes = same or self.losses
            self.failures[:0] = causes
            self.losses = [known for known in self.losses if known not in causes]
            return False
        self.failures.remove(failure)
        self.losses.append(failure)
        return True

    def fail_all(self) -> None:
        """Make the losses that the job has survived failures that end it."""
        self.failures[:0] = self.losses
        self.losses = []

    def start_newcomer(self, rank: int, host: str, *, is_on_trial: bool = False) -> int:
        """Note that a process of a rank is started while the job runs.

        Args:
            rank: The rank. Its last process, if it had one, has ended.
            host: Name of its host.
            is_on_trial: As in ``Member``.

        Returns:
            The number of the process.
        """
        old = self.members.get(rank)
        stay = 1 if old is None else old.stay + 1
        self.members[rank] = Member(
            rank, host, stay=stay, is_joining=True, is_on_trial=is_on_trial
        )
        return stay

    def joined(self, rank: int) -> str:
        """Note that a rank has joined the job, and return what to call its process."""
        member = self.members[rank]
        member.is_joining = member.is_on_trial = False
        return _describe(member)

    def leave(self, rank: int) -> str:
        """Note that a rank has left the job, and return what to call its process."""
        member = self.members[rank]
        member.has_left = True
        return _describe(member)

    def give_up(self) -> list[int]:
        """Return the ranks that can no longer join, whose ends are not failures.

        These are all newcomers, once each rank that takes part in the job has ended.
        """
        running = [member for member in self.members.values() if not member.ended]
        if not all(member.is_joining for member in running):
            return []
        given_up = [member for member in running if not member.announced]
        for member in given_up:
            member.announced = True
        return [member.rank for member in given_up]

    def command_started(self, rank: int, pid: int) -> None:
        """Note the process of a rank whose command has been started."""
        self.members[rank].pid = pid

    def hello(self, rank: int, pid: int) -> None:
        """Note the process that speaks for a rank; it may replace an earlier one."""
        member = self.members[rank]
        member.pid = pid
        member.said_goodbye = False

    def goodbye(self, rank: int) -> None:
        """Note that a rank has shut down cleanly."""
        self.members[rank].said_goodbye = True

    def not_started(self, rank: int, error: str) -> list[Change]:
        """Note that the command of a rank could not be started."""
        member = self.members[rank]
        member.ended = True
        text = f"rank {rank} on {member.host} could not be started: {error}"
        return self._lost(member, "not started", text, NOT_STARTED_CODE)

    def failing(
        self, rank: int, said: Failing, *, is_returning: bool = False
    ) -> list[Change]:
        """Note that an error ends the program of a rank, whose process still runs.

        Args:
            rank: The rank.
            said: Its last words.
            is_returning: Whether it has trained apart, and was about to join again.
        """
        member = self.members[rank]
        text = f"{_describe(member)} {said.deed}"
        root = self._root(said.peers)
        if root is not None:
            text += f", because {root.text}"
        elif said.reason:
            text += f": {said.reason}"
        # An error about a lost rank has other numbers and names on each rank.
        error = said.cause if said.peers else f"{said.cause}: {said.reason}"
        has_waited = said.peers or said.cause == "CommunicationTimeout"
        if is_returning:
            error = ""  # the network between it and the others may be cut again
        if member.is_on_trial or (member.is_joining and has_waited):
            # It has waited in vain, the rank with its state was lost, or a machine that
            # is new to the job may lack something.
            error = ""
        if said.cause == "PeerLostError" and not said.peers:
            # The others have gone on without it. They may be known to do so only later,
            # if their agents cannot be reached.
            error = ""
        return self._lost(
            member,
            said.cause,
            text,
            said.status,
            told=True,
            peers=tuple(said.peers),
            error=re.sub(r"[0-9]+", "0", error),
        )

    def _root(self, peers: Sequence[int]) -> Failure | None:
        """Return the failure of the first of ``peers`` that has failed."""
        failed = self._failed
        return next((failed[peer] for peer in peers if peer in failed), None)

    def damaged(self, rank: int, thread: str, error: str) -> list[Change]:
        """Warn that an exception has ended a thread of a rank."""
        member = self.members[rank]
        text = f"{_describe(member)} still runs, but its thread '{thread}' ended: "
        return [RankDamaged(rank=rank, host=member.host, text=text + error)]

    def exited(self, rank: int, status: int, oom: str | None = None) -> list[Change]:
        """Note the exit status of a rank's command, negative for a signal."""
        member = self.members[rank]
        member.status = status
        member.ended = True
        if status == 0:
            return self._finished(member)
        what, cause, code = describe_status(status)
        self._complete(rank, what, code)
        text = f"{_describe(member)} {what}"
        return self._lost(member, cause, text, code, oom)

    def _complete(self, rank: int, what: str, code: int) -> None:
        """Add the exit status to a failure that the rank itself reported."""
        for failures in (self.losses, self.failures):
            for index, known in enumerate(failures):
                is_news = known.told and known.exit_code != code and not self.ending
                is_this = (known.rank, known.stay) == (rank, self.members[rank].stay)
                if is_this and is_news:
                    text = f"{known.text}, and {what}"
                    failures[index] = replace(known, text=text, exit_code=code)

    def left_early(self) -> dict[int, str]:
        """Return the ranks that ended without failing, with a text about each end."""
        failed = self._failed
        return {
            rank: f"{_describe(member)} "
            + ("exited with status 0" if member.status == 0 else "called shutdown()")
            for rank, member in self.members.items()
            if rank not in failed and (member.status == 0 or member.said_goodbye)
        }

    def vanished(self, rank: int, pid: int) -> list[Change]:
        """Note that the process of a rank ended while its command still runs."""
        member = self.members[rank]
        text = (
            f"rank {rank} on {member.host}: its process {pid} ended without "
            "bluecomm.shutdown, while the command that started it still runs"
        )
        return self._lost(member, "ended without goodbye", text, 1)

    def frozen(self, rank: int, seconds: float) -> list[Change]:
        """Warn that the process of a rank is stopped."""
        member = self.members[rank]
        text = (
            f"{_describe(member)} has been stopped for "
            f"{seconds:.0f} s (state T: SIGSTOP, Ctrl-Z or a debugger); "
            f"kill -CONT {member.pid} resumes it"
        )
        return [RankFrozen(rank=rank, host=member.host, seconds=seconds, text=text)]

    def froze_too_long(self, rank: int, seconds: float) -> list[Change]:
        """Note that a rank was stopped for longer than the failure timeout."""
        member = self.members[rank]
        text = (
            f"{_describe(member)} was stopped (state T) "
            f"for {seconds:.0f} s, longer than --failure-timeout allows"
        )
        return self._lost(member, f"frozen {seconds:.0f} s", text, 1)

    def excluded(self, rank: int, cause: str, seconds: float) -> list[Change]:
        """Note that the other ranks have agreed to go on without a rank.

        Args:
            rank: The rank, whose process may still run.
            cause: ``stopped``, ``silent``, or anything else for a broken link.
            seconds: For how long it has been stopped or silent.
        """
        member = self.members[rank]
        what = "has lost its link to another rank"
        if cause in ("stopped", "silent"):
            what = f"has been {cause} for {seconds:.1f} s"
        else:
            cause = "cut off"
        return self._lost(member, cause, f"{_describe(member)} {what}", 1)

    def agent_lost(self, ranks: Sequence[int], reason: str) -> list[Change]:
        """Note that the agent of some ranks is lost, and with it these ranks."""
        frames: list[Change] = []
        for rank in ranks:
            member = self.members[rank]
            if not member.ended:
                member.ended = True
                text = f"rank {rank} on {member.host} is lost with its agent: {reason}"
                frames += self._lost(member, "agent lost", text, AGENT_LOST_CODE)
        return frames

    def _finished(self, member: Member) -> list[Change]:
        if member.announced:
            return []
        member.announced = True
        frame = RankFinished(rank=member.rank, host=member.host, stay=member.stay)
        if member.said_goodbye:
            return [frame]
        text = f"rank {member.rank} on {member.host} had finished (exit 0)"
        return [frame.replace(cause="exit 0", text=text)]

    def _lost(
        self,
        member: Member,
        cause: str,
        text: str,
        exit_code: int,
        hint: str | None = None,
        *,
        told: bool = False,
        peers: tuple[int, ...] = (),
        error: str = "",
    ) -> list[Change]:
        if member.announced:
            return []
        member.announced = True
        if self.ending:
            return []
        at_s = self.clock() - self.started
        self.failures.append(
            Failure(
                member.rank,
                cause,
                text,
                exit_code,
                at_s,
                hint,
                told,
                peers,
                error,
                member.stay,
            )
        )
        return [
            RankLost(
                rank=member.rank,
                host=member.host,
                cause=cause,
                text=text,
                stay=member.stay,
            )
        ]


def _describe(member: Member) -> str:
    return f"rank {member.rank} on {member.host} (pid {member.pid})"


def describe_status(status: int) -> tuple[str, str, int]:
    """Return an exit status as a phrase, as a cause, and as a shell's exit code."""
    if status < 0:
        name = signal_name(-status)
        return f"was killed by {name}", name, 128 - status
    phrase = f"ended with exit code {status}"
    if 128 < status < 128 + signal.NSIG:
        phrase += f" (which shells use for {signal_name(status - 128)})"
    return phrase, f"exit {status}", status


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def first_failure(
    failures: Sequence[Failure], tails: Mapping[int, Sequence[str]]
) -> Failure | None:
    """Return the failure that probably caused the others.

    Failures of the first half second may have overtaken each other on their way here.
    Among them, a rank that reports a lost peer is not the first, and a rank that was
    killed comes before one that exited.

    Args:
        failures: Failures in order of arrival.
        tails: Last lines of the ranks' stderr.
    """
    if not failures:
        return None
    close = [f for f in failures if f.at_s - failures[0].at_s <= 0.5]

    def follows(failure: Failure) -> tuple[bool, bool]:
        tail = tails.get(failure.rank, ())
        complains = failure.peers or any("PeerLostError" in line for line in tail)
        exited = failure.told or failure.cause.startswith(("exit", "SIGABRT"))
        return bool(complains), exited

    return min(close, key=follows)
