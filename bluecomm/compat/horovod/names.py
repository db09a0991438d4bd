"""Names of the tensors of a group."""

from __future__ import annotations


def member_name(name: str | None, position: int) -> str | None:
    """Return the name of one tensor of a group."""
    return None if name is None else f"{name}.{position}"
