"""Rendezvous: how a process learns its rank, the job's secret, and its peers."""

from __future__ import annotations

import abc
import dataclasses
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

from bfrun.frames.rank_to_driver import Goodbye
from bfrun.private_folder import PrivateFolder
from bluecomm.config import Config
from bluecomm.runtime.rendezvous.agent_connection import AgentConnection, NewsFeed

if TYPE_CHECKING:
    from bluecomm._native import MpiSession


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A launcher's assignment to a process: its rank, and how to reach the others.

    ``machine`` is equal on the ranks that share a real machine; ``machine_rank`` and
    the local ranks may belong to simulated machines. ``addresses`` are this host's
    addresses for data, best first. ``socket_dir`` is private to this user. With
    ``trace`` the launcher makes a timeline of the events that this rank records. With
    ``survives_losses`` the launcher lets the other ranks go on when one fails, and with
    ``respawns`` it starts the failed rank again; with ``grows`` it may also add ranks
    with new numbers. With ``splits`` ranks that are cut off from the others train on.
    ``stays`` has the number of each
    rank's process, 0 for those with which the job began.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    machine_rank: int
    machine_size: int
    job: str
    epoch: int
    secret: bytes
    host: str
    machine: str
    socket_dir: str
    addresses: tuple[str, ...]
    source: str
    trace: bool = False
    survives_losses: bool = False
    respawns: bool = False
    splits: bool = False
    grows: bool = False
    stays: tuple[int, ...] = ()


class Rendezvous(abc.ABC):
    """The meeting point of the ranks; one per process, for all its ``init`` calls."""

    @property
    @abc.abstractmethod
    def assignment(self) -> Assignment:
        """The assignment of this process."""

    @abc.abstractmethod
    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        """Publish this rank's record and return the records of all ranks, by rank.

        Collective: the n-th call of a rank meets the n-th call of the others.

        Raises:
            CommunicationTimeout: Some ranks did not publish their record in time.
        """

    @property
    def agent(self) -> AgentConnection | None:
        """The connection to the agent; None if there is no agent."""
        return None

    @property
    def news(self) -> NewsFeed | None:
        """The agent's news for the world of this rendezvous; None without an agent."""
        return None

    @property
    def mpi(self) -> MpiSession | None:
        """The session for the transport over MPI, if the ranks met over MPI."""
        return None

    @property
    def outlives_failure(self) -> bool:
        """Whether a program that ends by an exception may wait for all other ranks.

        If not, its links break at once, and the launcher tells the peers why.
        """
        return False

    @abc.abstractmethod
    def goodbye(self) -> None:
        """Tell the launcher that this rank has shut down cleanly."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free all resources, when the process exits or in a forked child."""


class AgentlessRendezvous(Rendezvous):
    """Base class for launchers without agents, which creates the folder for sockets.

    The folder belongs to the process that created it, not to its forks.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._folder = PrivateFolder("bluecomm-")
        try:
            self._assignment = self._meet(self._folder.path)
        except BaseException:
            self._folder.close()
            raise

    @abc.abstractmethod
    def _meet(self, folder: str) -> Assignment:
        """Meet the other ranks; the sockets of this process will be in ``folder``."""

    def _leave(self) -> None:
        """Free the resources of the meeting. Not called in a fork."""

    @property
    def assignment(self) -> Assignment:
        return self._assignment

    def goodbye(self) -> None:
        pass  # other launchers rely on exit codes

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        self._folder.close()
        self._leave()


class SoloRendezvous(AgentlessRendezvous):
    """A world of one, for a script that no launcher started."""

    def _meet(self, folder: str) -> Assignment:
        return Assignment(
            rank=0,
            size=1,
            local_rank=0,
            local_size=1,
            machine_rank=0,
            machine_size=1,
            job=secrets.token_hex(8),
            epoch=0,
            secret=secrets.token_bytes(32),
            host=socket.gethostname(),
            machine="solo",
            socket_dir=folder,
            addresses=("127.0.0.1",),
            source="no launcher: a world of one",
        )

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        return [record]


class AgentRendezvous(Rendezvous):
    """Rendezvous under bfrun, whose agent passes records and news.

    Attributes:
        joins: Whether the first world of the process joins a running job.
        rounds: Number of calls of ``exchange``, equal on all ranks between two worlds.
    """

    def __init__(self, config: Config) -> None:
        assert config.agent_socket is not None
        self.rounds = 0
        self._agent = AgentConnection(
            config.agent_socket, config.rank or 0, config.start_timeout_s
        )
        welcome = self._agent.welcome
        self.joins = welcome.stay > 0
        self._news = self._agent.news
        self._assignment = Assignment(
            rank=welcome.rank,
            size=welcome.size,
            local_rank=welcome.local_rank,
            local_size=welcome.local_size,
            machine_rank=welcome.machine_rank,
            machine_size=welcome.machine_size,
            job=welcome.job,
            epoch=welcome.epoch,
            secret=bytes.fromhex(welcome.secret),
            host=welcome.host,
            machine=welcome.machine,
            socket_dir=welcome.socket_dir,
            addresses=tuple(welcome.addresses),
            source="bfrun",
            trace=welcome.trace,
            survives_losses=welcome.survives_losses,
            respawns=welcome.respawns,
            splits=welcome.splits,
            grows=welcome.grows,
            stays=(0,) * welcome.size,
        )

    @property
    def assignment(self) -> Assignment:
        return self._assignment

    @property
    def agent(self) -> AgentConnection:
        return self._agent

    @property
    def news(self) -> NewsFeed:
        return self._news

    def follow(self, assignment: Assignment, news: NewsFeed, rounds: int) -> None:
        """Have later worlds begin where a world is that newcomers have joined.

        Args:
            assignment: The assignment in that world.
            news: The news for it.
            rounds: Number of calls of ``exchange`` of the ranks that are no newcomers.
        """
        self._assignment = assignment
        self._news = news
        self.rounds = rounds

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        number, self.rounds = self.rounds, self.rounds + 1
        return self._agent.exchange(record, number, timeout_s)

    def goodbye(self) -> None:
        self._agent.send(Goodbye())

    def close(self) -> None:
        if os.getpid() == self._agent.pid:
            self._agent.close()
        else:
            self._agent.abandon_after_fork()
