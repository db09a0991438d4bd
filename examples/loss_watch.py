"""Warns once when a training diverges."""

from __future__ import annotations

import math
import sys

import torch

import bluecomm as bf

_EPOCHS = 2
# A loss near zero goes up and down, so only a growth by this share of the loss of the
# first epoch counts.
_SHARE = 0.1


class LossWatch:
    """Follows the mean of the ranks' training losses, epoch by epoch.

    Args:
        remedy: Advice for the user, as a sentence.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._losses: list[float] = []
        self._has_warned = False

    def see(self, loss: float) -> None:
        """Take this rank's loss of an epoch; every rank must call it.

        Rank 0 prints one warning if the mean is not finite, or has grown in two epochs
        in a row.
        """
        mean = float(bf.allreduce(torch.tensor(loss), name="training loss"))
        self._losses.append(mean)
        what = None
        if not math.isfinite(mean):
            what = f"is {mean}"
        elif self._has_grown():
            what = f"has grown for {_EPOCHS} epochs, to {mean:.4g}"
        if what and not self._has_warned:
            self._has_warned = True
            if bf.rank() == 0:
                print(
                    f"warning: the training loss {what} in epoch {len(self._losses)}. "
                    f"{self._remedy}",
                    file=sys.stderr,
                    flush=True,
                )

    def _has_grown(self) -> bool:
        last = self._losses[-_EPOCHS - 1 :]
        growth = last[-1] - last[0]
        return (
            len(last) > _EPOCHS
            and last == sorted(last)
            and growth > _SHARE * self._losses[0]
        )
