"""Names of the tensors of a grouped operation."""

from __future__ import annotations


def member_name(name: str | None, position: int) -> str | None:
    """Return the name of one tensor of a group that has a name."""
    return None if name is None else f"{name}.{position}"
