"""Times calls on all ranks in interleaved rounds, so drift affects all equally."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from bluecomm import Max, allreduce, barrier
from bluecomm.bench.operations import Case

Call = Callable[[], object]
Turn = Callable[[int], float]
"""Makes a number of calls in a row, on all ranks; returns seconds per call here."""


class Implementation(Protocol):
    """An implementation of the operations: bluecomm itself or one of its peers."""

    @property
    def name(self) -> str:
        """The name in the results."""

    def prepare(self, case: Case) -> Turn | None:
        """Return the turn that measures a case; collective.

        Returns ``None``, on all ranks, if the operation is not implemented.
        """


def after_writing(tensor: torch.Tensor, call: Call) -> Call:
    """Return a call that writes its input first, as a training step does.

    Data written by another core is not in the caches of its readers.
    """

    def write_and_call() -> object:
        tensor.mul_(1)
        return call()

    return write_and_call


def timed(call: Call, end: Call = lambda: None) -> Turn:
    """Return the turn that repeats a call, and waits for the results by ``end``."""

    def turn(repeats: int) -> float:
        barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        end()
        return (time.perf_counter() - start) / repeats

    return turn


def measure(turns: Sequence[Turn], rounds: int, round_s: float) -> list[list[float]]:
    """Return the microseconds of each turn in each round; collective.

    Args:
        turns: The turns, all of them in each round.
        rounds: Number of rounds, after a first one that warms up.
        round_s: Approximate seconds of one turn; a turn makes at least one call.

    Returns:
        For each turn the time per call on the slowest rank, for each round. All ranks
        get the same.
    """
    repeats = [_repeats(turn, round_s) for turn in turns]
    times = torch.empty(rounds, len(turns), dtype=torch.float64)
    for number in range(rounds):
        # In another order in each round, because a turn feels what the turn before it
        # has left: threads, caches, and how the kernel has come to share the cores.
        for position in random.Random(number).sample(range(len(turns)), len(turns)):
            turn = turns[position]
            turn(1)  # not counted: the caches hold tensors of other turns
            times[number, position] = turn(repeats[position])
    slowest = allreduce(times, op=Max, name="bench.times")
    rows: list[list[float]] = (1e6 * slowest).T.tolist()
    return rows


def _repeats(turn: Turn, round_s: float) -> int:
    """Return how many calls fill a turn; the same on all ranks."""
    turn(1)
    calls = 1
    while True:
        seconds = torch.tensor(turn(calls), dtype=torch.float64)
        slowest = float(allreduce(seconds, op=Max, name="bench.repeats"))
        wanted = max(1, min(10_000, int(round_s / max(slowest, 1e-7))))
        # The first call after other turns is slow, so small operations need several.
        if wanted <= 4 * calls:
            return wanted
        calls = min(wanted, 8 * calls)
