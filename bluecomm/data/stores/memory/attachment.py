"""The share of one process in the shared file: descriptors, mappings, a row of pins."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import threading
from collections.abc import Iterator

from bluecomm.data.stores.byte_locks import ByteLocks
from bluecomm.data.stores.memory.layout import ROWS, CacheLayout
from bluecomm.data.stores.memory.lent_values import LentValues
from bluecomm.data.stores.memory.slabs import SlabTable

# Bytes whose locks have a meaning. They need not exist in the file.
_TABLE = 0
_FIRST_ROW = 1 << 40
_FIRST_KEY = 1 << 41
# Critical sections take microseconds, and at most a few milliseconds.
_TABLE_LIMIT_S = 5.0


class Attachment:
    """The shared file, as this process sees it. A fork makes its own.

    Args:
        fd: The shared file; the attachment owns the descriptor.
        layout: Its layout.
        token: Its token.

    Attributes:
        pid: The process that it belongs to.

    Raises:
        OSError: The file cannot be mapped, or too many processes use it.
    """

    def __init__(self, fd: int, layout: CacheLayout, token: int) -> None:
        self.fd = fd
        self.layout = layout
        self.token = token
        self.pid = os.getpid()
        self.mutex = threading.Lock()
        self.locks = ByteLocks(fd)
        self._row = ByteLocks(fd)
        self._memory = mmap.mmap(fd, layout.values_byte)
        # No method of this object: a circle would outlive the last reference.
        is_alive = functools.partial(_is_alive, self.locks)
        self.table = SlabTable(self._memory, layout, is_alive)
        self.lent = LentValues(fd, layout)
        self._take_row()

    def _take_row(self) -> None:
        """Take a row that no living process has. Its lock says that this one lives."""
        for row in range(ROWS):
            if self._row.try_lock(_FIRST_ROW + row):
                self.table.take_row(row)
                return
        raise OSError(f"the cache in memory has {ROWS} users already, and no row left")

    @contextlib.contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Hold the lock of the table.

        Raises:
            TimeoutError: A process has held it for seconds, probably a stopped one.
        """
        with self.mutex:
            self.settle()
            if not self.locks.lock(_TABLE, _TABLE_LIMIT_S, shared=shared):
                raise TimeoutError(
                    "a process has held the lock of the cache in memory for "
                    f"{_TABLE_LIMIT_S:g} s; look for a stopped one"
                )
            try:
                yield
            finally:
                self.locks.unlock(_TABLE)

    def settle(self) -> None:
        """Unpin the slabs of values that are no longer in use; with the mutex."""
        for location in self.lent.take_released():
            self.table.pin(self.table.slab_at(location), -1)

    def copy(self, location: int, nbytes: int) -> memoryview:
        """Return a copy of bytes of the values, whose slab is pinned.

        It is read from the file: the mapping shows what this process has written to a
        value that is in use.
        """
        data = bytearray(nbytes)
        os.preadv(self.fd, [data], self.layout.values_byte + location)
        return memoryview(data)

    def lock_key(self, key: int, limit_s: float) -> bool:
        """Return whether this process holds the lock of a key, within a limit."""
        return self.locks.lock(_FIRST_KEY + key, limit_s)

    def unlock_key(self, key: int) -> None:
        """Free the lock of a key."""
        self.locks.unlock(_FIRST_KEY + key)

    def pin_for_fork(self) -> None:
        """Keep the values that are in use for a fork that is about to inherit them.

        Their slabs stay pinned until this process and its forks have ended.
        """
        with self.mutex:
            for location in self.lent.in_use():
                self.table.pin(self.table.slab_at(location), 1)

    def close(self) -> None:
        """Close all descriptors. Values in use stay readable, but not pinned."""
        self.locks.close()
        self._row.close()
        self.lent.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        """Close what the program has left open."""
        if hasattr(self, "lent"):
            self.close()


def _is_alive(locks: ByteLocks, row: int) -> bool:
    return locks.is_held_elsewhere(_FIRST_ROW + row)
