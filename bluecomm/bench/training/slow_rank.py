"""Measures how fast the other ranks train while one rank is slow."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from bluecomm import allgather_object, barrier
from bluecomm.bench.terminal import show_table
from bluecomm.bench.training.contenders import Contender, Trainer
from bluecomm.bench.training.measuring import Effort, take_turn
from bluecomm.runtime import Communicator

FORMAT = "bluecomm.bench.slow_rank/1"


@dataclasses.dataclass(frozen=True)
class Pace:
    """Steps per second of a contender, medians over rounds and ranks.

    Attributes:
        contender: Its label.
        alike: Pace of all ranks when they are equally fast.
        others: Pace of the other ranks when one rank is slow.
        slow: Pace of the slow rank.
    """

    contender: str
    alike: float
    others: float
    slow: float

    @property
    def kept(self) -> float:
        """Pace of the others when one rank is slow, relative to equally fast ranks."""
        return self.others / self.alike


def measure_paces(
    trainers: tuple[Trainer, Trainer],
    comm: Communicator,
    contenders: Sequence[Contender],
    slow_rank: int,
    effort: Effort,
    say: Callable[[str], None],
) -> list[Pace]:
    """Measure the paces of all contenders; collective.

    Args:
        trainers: One whose ranks are equally fast, and one with a slow rank.
        comm: All ranks.
        contenders: The contenders.
        slow_rank: The slow rank of the second trainer.
        effort: How long to measure each contender with each trainer. Every rank runs
            at its own pace.
        say: Is told what is measured next.
    """
    mine: list[list[tuple[float, float]]] = []
    for number in range(effort.rounds):
        say(f"round {number + 1} of {effort.rounds}")
        mine.append([])
        for contender in contenders:
            paces = []
            for trainer in trainers:
                barrier()
                turn = take_turn(trainer, comm, contender, effort)
                paces.append(1 / turn.step_s)
            mine[-1].append((paces[0], paces[1]))
    everyone = allgather_object(mine, "bench.paces")
    found = []
    for position, contender in enumerate(contenders):
        own = [[turns[position] for turns in rank] for rank in everyone]
        alike = [pace for rank in own for pace, _ in rank]
        slow = [pace for _, pace in own[slow_rank]]
        others = [
            pace
            for rank, rounds_of_rank in enumerate(own)
            for _, pace in rounds_of_rank
            if rank != slow_rank
        ]
        middle = map(statistics.median, (alike, others, slow))
        found.append(Pace(contender.label, *middle))
    return found


def print_paces(paces: Sequence[Pace], title: str) -> None:
    """Print a table."""
    from rich.table import Table

    table = Table(title=title)
    table.add_column("algorithm")
    for heading in ("all alike: steps/s", "one slow: the others", "kept", "it"):
        table.add_column(heading, justify="right")
    for pace in paces:
        table.add_row(
            pace.contender,
            f"{pace.alike:.1f}",
            f"{pace.others:.1f}",
            f"{100 * pace.kept:.0f} %",
            f"{pace.slow:.1f}",
        )
    show_table(table)


def write_paces(paces: Sequence[Pace], file: Path) -> None:
    """Write the paces as JSON."""
    entries = [{**dataclasses.asdict(pace), "kept": pace.kept} for pace in paces]
    with open(file, "w") as out:
        json.dump({"format": FORMAT, "paces": entries}, out, indent=2)
