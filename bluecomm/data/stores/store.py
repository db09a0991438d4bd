"""What ``CachedDataset`` needs of a store."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

from bluecomm.data.world import DataWorld


class Missing:
    """The answer of a store that has no value under a key."""


MISSING: Final = Missing()


class SampleStore(ABC):
    """Values under the numbers of samples. Works in forks and in spawned processes."""

    @abstractmethod
    def open(self, world: DataWorld, length: int, fingerprint: str) -> None:
        """Prepare for the samples of a dataset; collective.

        Args:
            world: The ranks that share the dataset.
            length: Number of samples. Keys are smaller.
            fingerprint: Text that differs if the dataset does. Values of another
                fingerprint are never returned.
        """

    @abstractmethod
    def get(self, key: int) -> Any:
        """Return the value of a key, or ``MISSING``.

        The caller may write to it: the stored value does not change.

        Raises:
            OSError: The store cannot be read.
        """

    @abstractmethod
    def put(self, key: int, value: Any, cost_s: float) -> None:
        """Keep a value, unless others are worth more.

        Args:
            key: Its key.
            value: The value, which is copied.
            cost_s: Seconds that it took to load it.

        Raises:
            OSError: The store cannot be written.
            TypeError: It cannot be encoded.
            ValueError: It is too large.
        """

    @contextlib.contextmanager
    def loading(self, key: int) -> Iterator[None]:
        """Keep others that share the store from loading a key meanwhile."""
        yield

    @abstractmethod
    def close(self) -> None:
        """Release what this process holds of the store."""
