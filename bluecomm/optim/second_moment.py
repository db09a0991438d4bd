"""When ``QAdam`` updates the second moment, and what a missing one is taken to be."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def is_updated_in(step: int, updates_per_doubling: int) -> bool:
    """Return whether a step, counted from 0, updates the second moment.

    The number of steps from update ``j`` to the next one is
    ``2 ** (j // updates_per_doubling)``, with ``j`` counted from 0.
    """
    exponent = (step // updates_per_doubling + 1).bit_length() - 1
    interval = 1 << exponent
    first = updates_per_doubling * (interval - 1)
    return (step - first + 1) % interval == 0


def mean_of_positive(tensors: Iterable[torch.Tensor]) -> float:
    """Return the mean of all elements above 0; 0 if there are none."""
    total, count = 0.0, 0
    for tensor in tensors:
        total += float(tensor.sum(dtype=torch.float64))
        count += int(torch.count_nonzero(tensor))
    return total / count if count else 0.0
