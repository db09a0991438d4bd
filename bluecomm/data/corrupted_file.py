"""The error for a data file whose content is not what its format demands."""

from __future__ import annotations

from bluecomm.errors import BluecommError


class CorruptedFileError(BluecommError, ValueError):
    """Part of a data file is truncated or changed.

    Args:
        path: The file.
        offset: Where the part begins, in bytes from the start of the file.
        reason: The damage, as a clause.
        remedy: Advice to the user.

    Attributes:
        path: As above.
        offset: As above.
        reason: As above.
    """

    def __init__(self, path: str, offset: int, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: at byte {offset}: {reason}; {remedy}")
        self.path = path
        self.offset = offset
        self.reason = reason
        self._remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        """Let the error travel from a worker process to its parent."""
        return CorruptedFileError, (self.path, self.offset, self.reason, self._remedy)
