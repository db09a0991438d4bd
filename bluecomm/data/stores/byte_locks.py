"""Locks between processes on single bytes of a file, which end with their owner.

The locks belong to an open file description (``F_OFD_SETLK``). The kernel frees them
when its last descriptor is closed, so also when the process is killed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

# struct flock: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_FIRST_NAP_S = 20e-6
_LONGEST_NAP_S = 5e-3


class ByteLocks:
    """The locks of one process and file.

    Threads of the process share them, and exclude each other by other means.

    Args:
        fd: A descriptor of the file; a new description of it is opened.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, fd: int) -> None:
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)

    def try_lock(self, byte: int, *, shared: bool = False) -> bool:
        """Return whether this process holds the lock of a byte now."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, byte, 1, 0))
        except BlockingIOError:
            return False
        return True

    def lock(self, byte: int, limit_s: float, *, shared: bool = False) -> bool:
        """Wait for the lock of a byte; return whether it was got within the limit."""
        if self.try_lock(byte, shared=shared):
            return True
        until = time.monotonic() + limit_s
        nap = _FIRST_NAP_S
        while time.monotonic() < until:
            time.sleep(nap)
            if self.try_lock(byte, shared=shared):
                return True
            nap = min(2 * nap, _LONGEST_NAP_S)
        return False

    def unlock(self, byte: int) -> None:
        """Free the lock of a byte."""
        free = _FLOCK.pack(fcntl.F_UNLCK, 0, byte, 1, 0)
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, free)

    def is_held_elsewhere(self, byte: int) -> bool:
        """Return whether another description holds the lock of a byte."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0)
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Free all locks."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
