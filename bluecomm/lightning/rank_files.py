"""Writes and reads each rank's own file by Lightning's ``CheckpointIO``."""

from __future__ import annotations

import functools
from typing import Any

from lightning.fabric.utilities.cloud_io import get_filesystem

from bluecomm.optim.rank_files import agreed_part, part_of, path_of_rank


def save_own(
    io: Any, path: object, digests: dict[str, str], own: dict[str, Any]
) -> None:
    """Write this rank's state beside a common checkpoint.

    Args:
        io: Lightning's ``CheckpointIO``.
        path: The common checkpoint.
        digests: Digests of its models.
        own: This rank's state.
    """
    io.save_checkpoint(part_of(digests, own), path_of_rank(path))


def load_own(
    io: Any, path: object, digests: dict[str, str], weights_only: bool | None
) -> dict[str, Any] | None:
    """Return what ``save_own`` wrote, or None unless every rank has it. Collective."""
    own = path_of_rank(path)
    load = functools.partial(io.load_checkpoint, own, weights_only=weights_only)
    exists = get_filesystem(own).exists(own)
    return agreed_part(path, digests, load if exists else None)
