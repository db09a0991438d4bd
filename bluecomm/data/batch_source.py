"""The interface of a partition for the loader: batches, and an account of their use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class BatchSource(Protocol):
    """The batches of a rank, pass by pass.

    The loader calls ``begin``; then for each batch ``finish``, which says that the
    program has used the batch before, and ``take``; at last ``end``.
    """

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        ...

    @property
    def counted(self) -> int:
        """Number of records that all ranks together have used in this or the last pass.

        Raises:
            TypeError: It is not known.
        """
        ...

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at the next pass, unless it is the same one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the last batch that the program has taken."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state at the next pass."""
        ...

    def __len__(self) -> int:
        """Return the number of batches of the next pass, as far as it is known."""
        ...

    def begin(self) -> None:
        """Begin a pass, and end the one before."""
        ...

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches that workers may load ahead of the program."""
        ...

    def rest(self) -> Iterator[list[int]]:
        """Yield the batches that are left when the workers have no more."""
        ...

    def finish(self) -> None:
        """Note that the program has used the batch that it has taken, if any."""
        ...

    def take(self) -> int:
        """Note that the program takes the next batch, and return its length."""
        ...

    def end(self) -> None:
        """End the pass."""
        ...
