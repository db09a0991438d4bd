"""Rendezvous of a generation: all ranks of a running job, and newcomers.

The launcher invites them. The ranks of the job meet in a thread of their own, while
they train on in the generation before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bfrun.frames.driver_to_rank import Invite, JoinCancelled, JoinTable
from bfrun.frames.rank_to_driver import AskToJoin, JoinRecord
from bluecomm.errors import BluecommError, CommunicationTimeout
from bluecomm.runtime.rendezvous.agent_connection import (
    AgentConnection,
    AgentLost,
    News,
    NewsFeed,
)
from bluecomm.runtime.rendezvous.rendezvous import (
    AgentRendezvous,
    Assignment,
    Rendezvous,
)


class GenerationCancelled(BluecommError):
    """The launcher has cancelled a generation before the ranks have met."""


class GenerationRendezvous(Rendezvous):
    """Rendezvous of the ranks of one generation.

    Args:
        base: Rendezvous of this process, which has the connection to the agent.
        invite: The launcher's invitation.
        feed: All news that has arrived since the invitation.
        known: This rank's knowledge of the missing ranks: the last record of each of
            them, by rank. Empty for newcomers.

    Attributes:
        generation: Number of the generation.
        newcomers: The ranks that join the job with it.
        missing: The ranks that take no part in it.
        sides: The side of a partition on which each rank has trained, 0 for the
            primary and for new processes; empty if there was no partition.
    """

    def __init__(
        self,
        base: AgentRendezvous,
        invite: Invite,
        feed: NewsFeed,
        known: Mapping[int, Any] = MappingProxyType({}),
    ) -> None:
        self._base = base
        self._feed = feed
        self._rounds = base.rounds
        self.generation = invite.generation
        self.newcomers = tuple(invite.newcomers)
        self.missing = tuple(invite.missing)
        self.sides = tuple(invite.sides)
        self._known = {rank: known[rank] for rank in self.missing if rank in known}
        self._assignment = dataclasses.replace(
            base.assignment,
            size=len(invite.stays),
            epoch=invite.generation,
            stays=tuple(invite.stays),
        )

    @property
    def returning(self) -> tuple[int, ...]:
        """The ranks that have trained apart from the primary."""
        return tuple(rank for rank, side in enumerate(self.sides) if side)

    @property
    def assignment(self) -> Assignment:
        return self._assignment

    @property
    def agent(self) -> AgentConnection:
        return self._base.agent

    @property
    def news(self) -> NewsFeed:
        return self._feed

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        """See the base class. Missing ranks have the last record of their processes.

        Raises:
            GenerationCancelled: The launcher has cancelled the generation.
        """
        # Newcomers have taken part in none of the earlier rounds, and know nobody.
        known = [self._known.get(rank) for rank in self.missing]
        told = {**record, "rounds": self._rounds, "missing": known}
        self.agent.send(JoinRecord(generation=self.generation, record=told))
        answer = self._feed.wait_for(self._is_answer, timeout_s)
        if isinstance(answer, JoinTable):
            return self._complete(answer.records)
        rank = self._assignment.rank
        if isinstance(answer, JoinCancelled):
            raise GenerationCancelled(
                f"init on rank {rank}: generation {self.generation} was cancelled: "
                f"{answer.text}",
                operation="init",
                rank=rank,
            )
        if isinstance(answer, AgentLost):
            raise BluecommError(f"init on rank {rank}: {answer.text}", rank=rank)
        raise CommunicationTimeout(
            f"init on rank {rank}: the ranks of generation {self.generation} have not "
            f"met within {timeout_s:g} s; look at the ranks' output",
            operation="init",
            rank=rank,
            timeout_s=timeout_s,
        )

    def _complete(self, records: list[Any]) -> list[Any]:
        """Take over what the others know, and return the records of all ranks."""
        others = [
            record
            for rank, record in enumerate(records)
            if rank not in (*self.missing, *self.newcomers)
        ]
        first = others[0]
        self._rounds = first["rounds"]
        last = dict(zip(self.missing, first["missing"], strict=True))
        return [
            _of_missing(last[rank], first) if rank in last else record
            for rank, record in enumerate(records)
        ]

    def _is_answer(self, news: News) -> bool:
        if isinstance(news, (JoinTable, JoinCancelled)):
            return news.generation == self.generation
        return isinstance(news, AgentLost)

    def take_effect(self) -> None:
        """Have later worlds of this process begin where this generation is."""
        self._base.follow(self._assignment, self._feed, self._rounds)

    def goodbye(self) -> None:
        self._base.goodbye()

    def close(self) -> None:
        self.agent.close_feed(self._feed)


def _of_missing(last: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a missing rank, with what all ranks agree on by now.

    Args:
        last: The last record of its processes, which may be for fewer ranks.
        other: The record that another rank has published.
    """
    topology = other["record"]["topology"]
    return {**other, "record": {**last, "topology": topology}}


def ask_to_join(base: AgentRendezvous) -> None:
    """Have the launcher invite this process, which joins a running job."""
    base.agent.send(AskToJoin())


def await_invitation(base: AgentRendezvous, timeout_s: float) -> GenerationRendezvous:
    """Return the rendezvous of the next generation to which a newcomer is invited.

    Raises:
        BluecommError: The agent is lost.
        CommunicationTimeout: No invitation has come in time.
    """
    rank = base.assignment.rank
    news = base.news.wait_for(
        lambda news: isinstance(news, (Invite, AgentLost)), timeout_s
    )
    if isinstance(news, Invite):
        return GenerationRendezvous(base, news, base.news)
    if isinstance(news, AgentLost):
        raise BluecommError(f"init on rank {rank}: {news.text}", rank=rank)
    raise CommunicationTimeout(
        f"init on rank {rank}: the running job has not invited this rank to join it "
        f"within {timeout_s:g} s (--start-timeout); another rank may be lost, too, or "
        "have ended its training",
        operation="init",
        rank=rank,
        timeout_s=timeout_s,
    )
