"""The part of each rank in autotuning: measures, agrees, and changes the options."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bluecomm.compression import Compression
from bluecomm.ops.allreduce import allreduce
from bluecomm.ops.broadcast import broadcast_
from bluecomm.ops.reduce_op import Max
from bluecomm.optim.autotune.decider import Decider
from bluecomm.optim.autotune.round_times import RoundTimes
from bluecomm.optim.autotune.search import FIRST_ROUNDS, Interval, RoundTime
from bluecomm.optim.autotune.sending import Sending, without_sending
from bluecomm.optim.autotune.space import Setting, Space
from bluecomm.runtime import Communicator

COMPRESSION = "compression"
_COMPRESSORS = {"none": Compression.none, "fp16": Compression.fp16}


class Tuning:
    """The tuning of one optimizer on this rank.

    All ranks count the same rounds. After as many as the last decision says, they
    exchange how long these took; one rank decides, and tells the others.

    Args:
        comm: Ranks that take part; the first one decides.
        name: Prefix of the names of its operations.
        space: The settings; the same on all ranks.
        decider: Decides for all; ``None`` on the other ranks.
        clock: Returns the time in seconds.

    Attributes:
        space: The settings.
        is_over: Whether the ranks have agreed on the setting that is kept.
    """

    def __init__(
        self,
        comm: Communicator,
        name: str,
        space: Space,
        decider: Decider | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._comm = comm
        self._name = name
        self.space = space
        self._decider = decider
        self._times = RoundTimes(clock)
        self._setting = space.default
        self._sending = Sending(comm.world)
        self.is_over = False

    def begin(self) -> None:
        """Begin to measure the default."""
        self._times.begin(FIRST_ROUNDS)

    def interrupt(self) -> None:
        """Record that this rank does something besides training in this round."""
        self._times.interrupt()

    def on_round(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Record the end of the step of a round.

        At the end of an interval this exchanges the times.

        Args:
            change: Makes the optimizer go on with other values of some options.

        Raises:
            BluecommError: The exchange failed.
        """
        if self.is_over or not self._times.on_round():
            return
        decision = self._decide(self._slowest())
        if decision.setting != self._setting:
            self._change(decision.setting, change)
        self.is_over = decision.rounds == 0
        if self.is_over:
            self._sending.keep()
        else:
            self._times.begin(decision.rounds)

    def _change(
        self, setting: Setting, change: Callable[[dict[str, Any]], None]
    ) -> None:
        """Go on with another setting."""
        before, self._setting = self._setting, setting
        self._sending.apply(setting)
        options = options_of(setting)
        if options != options_of(before):
            change(options)

    def _slowest(self) -> list[RoundTime]:
        """Return the rounds of the interval, each on its slowest rank. Collective."""
        own = [self._times.seconds, self._times.interrupted]
        of_all = allreduce(
            torch.tensor(own, dtype=torch.float64),
            op=Max,
            name=f"{self._name}.autotune.times",
            process_set=self._comm,
        )
        return [
            RoundTime(seconds, is_interrupted=bool(interrupted))
            for seconds, interrupted in of_all.T.tolist()
        ]

    def _decide(self, rounds: Sequence[RoundTime]) -> Interval:
        """Return the decision of the first rank. Collective."""
        told = torch.zeros(1 + len(self.space.choices), dtype=torch.int64)
        if self._decider is not None:
            decision = self._decider.report(rounds)
            positions = self.space.positions_of(decision.setting)
            told = torch.tensor([decision.rounds, *positions])
        broadcast_(
            told,
            self._comm.ranks[0],
            f"{self._name}.autotune.decision",
            process_set=self._comm,
        )
        count, *positions = told.tolist()
        return Interval(self.space.at(positions), count)


def options_of(setting: Setting) -> dict[str, Any]:
    """Return the options of ``DistributedOptimizer`` that a setting stands for."""
    changed = without_sending(setting)
    if COMPRESSION in changed:
        changed[COMPRESSION] = _COMPRESSORS[changed[COMPRESSION]]
    return changed
