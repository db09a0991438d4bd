"""Finds out how tensors of a GPU have travelled, and whether that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from bluecomm import DeviceStats, stats
from bluecomm.runtime import current_communicator

NCCL, STAGED = "nccl", "staged"
_WORDS = {NCCL: "passed to NCCL", STAGED: "copied to the host"}


class UnexpectedPath(Exception):
    """Tensors of a GPU have not travelled as the job's setting says."""


def job_path() -> str:
    """Return how tensors of a GPU travel in this job: ``"nccl"`` or ``"staged"``."""
    return current_communicator().world.device_transport.path


def device_counts() -> DeviceStats:
    """Return the counters from which ``path_since`` counts."""
    return stats().devices


def path_since(before: DeviceStats) -> str:
    """Return how this rank's tensors have travelled since ``device_counts``.

    Returns:
        ``"nccl"``, ``"staged"``, or an empty text if none has.
    """
    now = device_counts()
    if now.nccl_calls > before.nccl_calls:
        return NCCL
    has_copied = (
        now.copies_to_host > before.copies_to_host
        or now.copies_to_device > before.copies_to_device
    )
    return STAGED if has_copied else ""


def check_paths(
    what: str, used: Sequence[str], asked: str, *, needs_nccl: bool
) -> None:
    """Raise unless the ranks' tensors have travelled as asked.

    Args:
        what: Name of the operation or algorithm that the ranks have run.
        used: What ``path_since`` returned on each rank; ranks without a call are fine.
        asked: The job's path.
        needs_nccl: Whether NCCL carries this out where it may be used.

    Raises:
        UnexpectedPath: NCCL was used in a job without it; or it was not used, though
            it can carry this out.
    """
    for rank, path in enumerate(used):
        if path and path != asked and (asked == STAGED or needs_nccl):
            raise UnexpectedPath(
                f"{what}: the tensors of rank {rank} were {_WORDS[path]}, but the job "
                f"asks for {asked}, so the times would be those of another path; look "
                "at BLUECOMM_DEVICE_TRANSPORT and the warnings of rank 0"
            )
