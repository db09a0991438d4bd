"""The samples that all ranks together use in each step of an epoch.

The steps are the same on all ranks, so all ranks make equally many. A separate rule
deals the samples of a step to the ranks.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bluecomm.data.permutation import Indices
from bluecomm.data.remaining import Remaining


class Steps(Protocol):
    """The steps of the rest of an epoch."""

    def __len__(self) -> int:
        """Return the number of steps, the same on all ranks."""
        ...

    def positions(self, step: int) -> Indices:
        """Return the positions that the ranks use in a step."""
        ...

    def after(self, steps: int) -> Remaining:
        """Return the positions that are left after some steps."""
        ...


class EqualSteps:
    """Steps of ``ranks * batch_size`` consecutive positions.

    With ``r`` positions beyond the last full step:

    * ``drop_last``: no step uses them;
    * ``pad``, and ``r > 0``: one more step, in which each rank has ``ceil(r / ranks)``
      samples; the first positions fill it up, and are repeats;
    * ``r >= ranks``: one more step, in which ranks have ``floor(r / ranks)`` samples or
      one more;
    * ``0 < r < ranks``: some ranks would have no sample, so the last full step uses
      them: there ranks have ``batch_size`` samples or one more.

    Args:
        remaining: The positions.
        ranks: Number of ranks.
        batch_size: Samples of a rank in a step.
        drop_last: Whether to leave out what does not fill a step.
        pad: Whether to fill up the last step with repeats.

    Attributes:
        remaining: The positions.
        each: Number of positions of a full step.
        full: Number of full steps.

    Raises:
        ValueError: There are fewer positions than ranks, at least one, and neither
            ``drop_last`` nor ``pad`` says what to do with them.
    """

    def __init__(
        self,
        remaining: Remaining,
        ranks: int,
        batch_size: int,
        *,
        drop_last: bool,
        pad: bool,
    ) -> None:
        self.remaining = remaining
        self._ranks = ranks
        self.each = ranks * batch_size
        full, rest = divmod(len(remaining), self.each)
        self.full = full
        self._steps = full
        self._repeats = 0
        if drop_last or rest == 0:
            self._end = full * self.each
        else:
            self._end = len(remaining)
            if pad:
                self._repeats = -rest % ranks
            elif rest < ranks:
                if full == 0:
                    raise too_few(rest, ranks)
                self.full -= 1
                return
            self._steps += 1

    def __len__(self) -> int:
        return self._steps

    def positions(self, step: int) -> Indices:
        """Return the positions of one step."""
        if step < self._steps - 1:
            return self.remaining.cut(step * self.each, (step + 1) * self.each)
        last = self.remaining.cut(step * self.each, self._end)
        if not self._repeats:
            return last
        wrapped = np.arange(self._repeats) % len(self.remaining)
        first = self.remaining.cut(0, min(self._repeats, len(self.remaining)))
        return np.concatenate([last, first[wrapped]])

    def after(self, steps: int) -> Remaining:
        """Return the positions that are left after some steps."""
        if steps >= self._steps:
            return self.remaining.without(len(self.remaining))
        return self.remaining.without(steps * self.each)


def too_few(samples: int, ranks: int) -> ValueError:
    """Return the error that not each rank can have a sample."""
    noun = "sample is" if samples == 1 else "samples are"
    return ValueError(
        f"bluecomm.data: {samples} {noun} left for {ranks} ranks, so not each of them "
        "can have a batch; pass pad=True, which repeats samples, or drop_last=True, "
        "which leaves them out"
    )
