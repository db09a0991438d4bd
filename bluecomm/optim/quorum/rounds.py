"""The rounds of an outer step with a quorum, without any communication."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import torch

from bluecomm.optim.nesterov import nesterov_step


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a rank since it last sent some.

    Attributes:
        values: The progress, one flat tensor for each bucket.
        steps: The number of steps. The values do not count if it is 0.
        is_ending: Whether the rank takes no further steps.
    """

    values: Sequence[torch.Tensor]
    steps: int
    is_ending: bool


@dataclasses.dataclass(frozen=True)
class Closed:
    """A round that has closed.

    Attributes:
        number: Its number, from 0.
        members: The members whose progress it has taken, in ascending order.
        all_end: Whether all members are ending.
    """

    number: int
    members: tuple[int, ...]
    all_end: bool


@dataclasses.dataclass(frozen=True)
class RoundOptions:
    """When rounds close, and what they compute.

    Attributes:
        quorum: Number of members whose progress a round needs.
        grace: How long a round waits for the others, as a multiple of the time that the
            quorum has taken.
        outer_lr: Rate of the outer step.
        outer_momentum: Factor of the momentum.
    """

    quorum: int
    grace: float
    outer_lr: float
    outer_momentum: float


class QuorumRounds:
    """Takes the progress of members, and makes an outer step when a quorum has come.

    With ``D_i`` the progress of a member in ``h_i`` steps, a round computes

        D = sum_i h_i D_i / sum_i h_i,    m <- momentum * m + D
        p <- p - lr * (D + momentum * m)

    Args:
        size: Number of members.
        outer: The outer parameters ``p``, one flat tensor for each bucket, which rounds
            change.
        momentum: The momentum ``m`` of each of them.
        options: When rounds close, and what they compute.
        clock: Returns the time in seconds.

    Attributes:
        number: Number of the open round.
    """

    def __init__(
        self,
        size: int,
        outer: Sequence[torch.Tensor],
        momentum: Sequence[torch.Tensor],
        options: RoundOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._size = size
        self._outer = outer
        self._momentum = momentum
        self._options = options
        self._clock = clock
        self._taken: dict[int, Progress] = {}
        self._opened_s = clock()
        # When the round closes at the latest; None before the quorum has come.
        self._closes_s: float | None = None
        self.number = 0

    @property
    def members(self) -> tuple[int, ...]:
        """The members whose progress the open round has taken."""
        return tuple(self._taken)

    def take(self, member: int, progress: Progress) -> None:
        """Take the progress of a member, which has none in the open round."""
        assert member not in self._taken
        self._taken[member] = progress
        if self._closes_s is None and self._has_quorum:
            now = self._clock()
            self._closes_s = now + self._options.grace * (now - self._opened_s)

    @property
    def _has_quorum(self) -> bool:
        """Whether the round may close.

        Members that are ending come at once in each round. Without a member that goes
        on, such rounds would follow one another without a pause.
        """
        taken = self._taken.values()
        goes_on = any(one.steps or not one.is_ending for one in taken)
        return len(taken) >= self._options.quorum and goes_on

    @property
    def is_due(self) -> bool:
        """Whether the open round is to be closed now."""
        if len(self._taken) == self._size:
            return True
        return self._closes_s is not None and self._clock() >= self._closes_s

    def close(self) -> Closed:
        """Make the outer step of the open round, and open the next one."""
        taken = dict(sorted(self._taken.items()))
        steps = sum(one.steps for one in taken.values())
        lr, factor = self._options.outer_lr, self._options.outer_momentum
        if steps:
            for position, outer in enumerate(self._outer):
                mean = torch.zeros_like(outer)
                for one in taken.values():
                    if one.steps:
                        mean.add_(one.values[position], alpha=one.steps / steps)
                momentum = self._momentum[position]
                nesterov_step(mean, outer, momentum, lr, factor)
                outer.copy_(mean)
        all_end = len(taken) == self._size and all(
            one.is_ending for one in taken.values()
        )
        closed = Closed(self.number, tuple(taken), all_end)
        self._taken = {}
        self._opened_s = self._clock()
        self._closes_s = None
        self.number += 1
        return closed
