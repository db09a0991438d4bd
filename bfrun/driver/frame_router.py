"""Sends each frame to the agents and ranks that it is for."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Sequence

from bfrun.driver.agent_session import AgentSession
from bfrun.driver.record_table import Answers
from bfrun.frames.driver_to_agent import OutputShown, ToRanks
from bfrun.frames.frame import Frame
from bfrun.plan import LaunchPlan


class FrameRouter:
    """Sends frames to agents, and through them to ranks.

    Args:
        plan: The ranks of each host.
        sessions: One for each host of the plan, in order. The caller owns them.
    """

    def __init__(self, plan: LaunchPlan, sessions: Sequence[AgentSession]) -> None:
        self.sessions = sessions
        self._session_of = {
            spec.rank: session
            for host, session in zip(plan.hosts, sessions, strict=True)
            for spec in host.processes
        }
        self._shown: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        # Output of each rank that has arrived and has not been shown. Agents that have
        # been reached again send some of it anew, and must not count it twice.
        self._unshown: dict[int, int] = {}
        self._repeated: dict[int, int] = {}

    def move(self, rank: int, host: int) -> None:
        """Send the frames for a rank to the agent of another host from now on."""
        self._session_of[rank] = self.sessions[host]

    @property
    def has_backlog(self) -> bool:
        """Whether frames wait to be sent."""
        return any(s.has_backlog and not s.lost for s in self.sessions)

    def flush(self) -> None:
        """Send what the connections take now."""
        for session in self.sessions:
            session.flush()

    def to_agents(self, frame: Frame) -> None:
        """Send a frame to every agent."""
        for session in self.sessions:
            session.send(frame)

    def to_agent_of(self, rank: int, frame: Frame) -> None:
        """Send a frame to the agent of a rank."""
        self._session_of[rank].send(frame)

    def to_all_ranks(self, frame: Frame) -> None:
        """Send a frame to every rank that is connected to its agent."""
        self.to_agents(ToRanks(frame=frame.to_message()))

    def to_ranks(self, ranks: Iterable[int], frame: Frame) -> None:
        """Send a frame to some ranks."""
        by_session: dict[int, list[int]] = {}
        for rank in ranks:
            by_session.setdefault(id(self._session_of[rank]), []).append(rank)
        for here in by_session.values():
            message = frame.to_message()
            self.to_agent_of(here[0], ToRanks(ranks=here, frame=message))

    def answer(self, answers: Answers) -> None:
        """Send the answers of a rendezvous."""
        for ranks, frame in answers:
            self.to_ranks(ranks, frame)

    def reaches(self, rank: int) -> bool:
        """Return whether the agent of a rank gets the frames that are sent now."""
        return self._session_of[rank].is_reached

    def note_arrived(self, rank: int, nbytes: int) -> None:
        """Note that output of a rank has arrived."""
        self._unshown[rank] = self._unshown.get(rank, 0) + nbytes

    def note_repeated(self, ranks: Iterable[int]) -> None:
        """Note that an agent sends again what has not been shown of its ranks."""
        for rank in ranks:
            self._repeated[rank] = self._unshown.get(rank, 0)

    def note_shown(self, rank: int, nbytes: int) -> None:
        """Note that output of a rank has been shown. Safe to call from any thread."""
        self._shown.put((rank, nbytes))

    def acknowledge(self) -> None:
        """Tell the agents how much output has been shown, so that ranks may go on."""
        shown: dict[int, int] = {}
        while not self._shown.empty():
            rank, nbytes = self._shown.get()
            shown[rank] = shown.get(rank, 0) + nbytes
        for rank, nbytes in shown.items():
            self._unshown[rank] = self._unshown.get(rank, 0) - nbytes
            repeated = min(nbytes, self._repeated.get(rank, 0))
            if repeated:
                self._repeated[rank] -= repeated
            if nbytes > repeated:
                frame = OutputShown(rank=rank, nbytes=nbytes - repeated)
                self.to_agent_of(rank, frame)
