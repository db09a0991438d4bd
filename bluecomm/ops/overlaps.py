"""Whether the tensors of one call share memory, on the host or on a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from bluecomm.ops.tensor import location


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two contiguous tensors share memory."""
    (space, begin, end), (other, begin_of_other, end_of_other) = map(
        location, (first, second)
    )
    return space == other and begin < end_of_other and begin_of_other < end


def any_overlap(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether two of several contiguous tensors share memory."""
    locations = sorted(location(tensor) for tensor in tensors if tensor.nbytes)
    return any(
        space == other and begin < end
        for (space, _, end), (other, begin, _) in itertools.pairwise(locations)
    )


def apart_from(result: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return the input of a call through NCCL: a copy if it overlaps the result.

    NCCL would overwrite what it has not read yet.

    Args:
        result: Contiguous memory of the result.
        source: Contiguous input.
    """
    return source.clone() if overlap(result, source) else source
