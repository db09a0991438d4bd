"""Counts the messages of a topology, per rank and per machine's network card."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from bluecomm.topology.schedule import TopologySchedule


def messages_leaving(
    sends: Iterable[tuple[int, int]], machine_of: Sequence[int]
) -> int:
    """Return the number of messages that go to another machine.

    Args:
        sends: (sender, receiver) of each message.
        machine_of: Machine of each rank.
    """
    return sum(machine_of[one] != machine_of[other] for one, other in sends)


def sends_in(
    schedule: TopologySchedule, round_number: int, ranks: Iterable[int]
) -> list[tuple[int, int]]:
    """Return (sender, receiver) of the messages that some ranks send in a round."""
    return [
        (rank, target)
        for rank in ranks
        for target in schedule.peers(round_number, rank)[0]
    ]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Numbers of messages in a round, each of the size of the tensor.

    Attributes:
        rank_most: Messages of the busiest rank in its busiest round.
        rank_mean: Messages of a rank, mean over ranks and rounds.
        card_most: Messages that leave the busiest machine in its busiest round.
        card_mean: Messages that leave the busiest machine, mean over the rounds.
    """

    rank_most: int
    rank_mean: float
    card_most: int
    card_mean: float


def traffic_of(
    schedule: TopologySchedule, machine_of: Sequence[int], rounds: int
) -> Traffic:
    """Return the messages of the first rounds of a schedule.

    Args:
        schedule: A schedule.
        machine_of: Machine of each rank, numbered from 0.
        rounds: Number of rounds to count, at least 1.
    """
    machines: list[list[int]] = [[] for _ in range(max(machine_of) + 1)]
    for rank, machine in enumerate(machine_of):
        machines[machine].append(rank)
    by_rank: list[int] = []
    by_machine: list[list[int]] = [[] for _ in machines]
    for number in range(rounds):
        for members, leaving in zip(machines, by_machine, strict=True):
            sends = sends_in(schedule, number, members)
            leaving.append(messages_leaving(sends, machine_of))
            senders = [sender for sender, _ in sends]
            by_rank += [senders.count(rank) for rank in members]
    return Traffic(
        rank_most=max(by_rank),
        rank_mean=statistics.mean(by_rank),
        card_most=max(max(leaving) for leaving in by_machine),
        card_mean=max(statistics.mean(leaving) for leaving in by_machine),
    )
