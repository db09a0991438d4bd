"""The GPUs of each rank of a host.

Standard library only, Python 3.8.
"""

from __future__ import annotations

from typing import Sequence, Tuple  # noqa: UP035

from bfrun.errors import LaunchError
from bfrun.wording import count


def gpus_of_rank(
    host: str,
    gpus: Sequence[str],
    each: int,
    position: int,
    ranks: int,
    is_shared: bool,
) -> Tuple[str, ...]:  # noqa: UP006
    """Return the GPUs that a rank sees, as ``CUDA_VISIBLE_DEVICES`` takes them.

    Args:
        host: Name of the host, for errors.
        gpus: Its visible GPUs.
        each: Number of GPUs of each rank (``--gpus-per-rank``).
        position: Number of the rank among those of the host.
        ranks: Number of ranks of the host.
        is_shared: Whether ranks may use the same GPU (``--share-gpus``); then they take
            turns.

    Raises:
        LaunchError: The ranks need more GPUs than the host has.
    """
    if is_shared and each <= len(gpus):
        return tuple(gpus[(position * each + n) % len(gpus)] for n in range(each))
    if each * ranks > len(gpus):
        raise LaunchError(
            f"--gpus-per-rank {each}: host '{host}' needs "
            f"{count(each * ranks, 'GPU')} for {count(ranks, 'rank')}, but it has "
            f"{len(gpus)}; lower --gpus-per-rank, start fewer ranks there, or add "
            "--share-gpus"
        )
    return tuple(gpus[position * each : (position + 1) * each])
