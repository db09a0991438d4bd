"""Says which rank may save the model, also while the network is cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from bluecomm.runtime import current_process
from bluecomm.runtime.members import PRIMARY


def may_save() -> bool:
    """Return whether this rank is the one that saves what all ranks have trained.

    It is the lowest rank that is left. While the network is cut
    (``bfrun --partition both``), it is the lowest one of the primary side. A rank that
    waits for others may not save. At the begin of a cut, both sides may believe for a
    moment that they may save, until one of them notices the cut. So write another file
    and rename it, as ``save`` does.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return _is_lowest() and lineage() == PRIMARY


def lineage() -> str:
    """Return the name of the lineage in which this rank trains.

    It is ``"primary"``, unless this rank trains apart from the primary side while the
    network is cut (``bfrun --partition both``).

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_process().communicator.world.members.lineage


def save(content: Any, path: str | os.PathLike[str]) -> Path | None:
    """Write an object with ``torch.save``, on the lowest rank of each side.

    The file is replaced as a whole, so a reader never sees a part of it.

    Args:
        content: The object, such as a state dict.
        path: Where the primary side saves. Another side adds its lineage to the name:
            ``model.pt`` becomes ``model.1f3a90bc.pt``.

    Returns:
        The path of the file, or ``None`` if this rank has saved nothing.

    Raises:
        NotInitializedError: ``init`` has not been called.
        OSError: The file cannot be written.
    """
    if not _is_lowest():
        return None
    target = Path(path)
    if lineage() != PRIMARY:
        target = target.with_name(f"{target.stem}.{lineage()}{target.suffix}")
    # For a moment two sides may both save, perhaps on hosts with equal process ids.
    rank = current_process().communicator.world.rank
    part = target.with_name(f"{target.name}.{rank}.{os.getpid()}.part")
    torch.save(content, part)
    os.replace(part, target)
    return target


def _is_lowest() -> bool:
    world = current_process().communicator.world
    return world.rank == world.members.left[0] and not world.members.is_held
