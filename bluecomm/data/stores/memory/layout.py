"""The layout of the shared file: a head, slabs, pins, keys, and the values.

All numbers of the head are words of 64 bits::

    head      magic number, token, slabs, bytes of a slab, keys, rows
    slabs  for each: state, class, bytes in use, number of its last filling
    pins      for each row (process), for each slab: values in use
    keys      for each: 0, or the location of its value / 64, plus 1
    values    from the next page on: the slabs
"""

from __future__ import annotations

import mmap
import os
import secrets
from typing import NamedTuple

SLABS = 64
ROWS = 1024
PAGE = mmap.PAGESIZE
_MAGIC = 0x42434D454D4F5231
_HEAD_WORDS = 16
_SLAB_WORDS = 4
_WORD = 8

# States of a slab.
FREE = 0
USED = 1
EMPTYING = 2


class CacheLayout(NamedTuple):
    """The sizes of a file, and where its parts begin, in words or bytes.

    Attributes:
        slab_nbytes: Bytes of a slab, a multiple of the page.
        keys: Number of keys.
    """

    slab_nbytes: int
    keys: int

    @property
    def pins_word(self) -> int:
        """The first word of the pins."""
        return _HEAD_WORDS + SLABS * _SLAB_WORDS

    @property
    def keys_word(self) -> int:
        """The first word of the keys."""
        return self.pins_word + ROWS * SLABS

    @property
    def values_byte(self) -> int:
        """The first byte of the values."""
        end = (self.keys_word + self.keys) * _WORD
        return -(-end // PAGE) * PAGE

    @property
    def values_nbytes(self) -> int:
        """Bytes of all slabs."""
        return SLABS * self.slab_nbytes


def slab_word(slab: int) -> int:
    """Return the first word of a slab."""
    return _HEAD_WORDS + slab * _SLAB_WORDS


def create_file(layout: CacheLayout) -> tuple[int, int]:
    """Return a new file without a name, and its token.

    The kernel frees its memory when the last process that uses it has ended.

    Raises:
        OSError: It cannot be made.
    """
    fd = os.memfd_create("bluecomm-cache", os.MFD_CLOEXEC)
    token = secrets.randbits(63)
    try:
        os.ftruncate(fd, layout.values_byte + layout.values_nbytes)
        words = (_MAGIC, token, SLABS, layout.slab_nbytes, layout.keys, ROWS)
        os.pwrite(fd, b"".join(word.to_bytes(_WORD, "little") for word in words), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd, token


def open_file(pid: int, number: int, layout: CacheLayout, token: int) -> int:
    """Return a descriptor of the file that another process has open.

    Args:
        pid: The process.
        number: Its descriptor.
        layout: The layout that the file has.
        token: The token that the file has.

    Raises:
        OSError: The process has ended, may not be looked into, or has another file
            under this number.
    """
    fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    words = (_MAGIC, token, SLABS, layout.slab_nbytes, layout.keys, ROWS)
    expected = b"".join(word.to_bytes(_WORD, "little") for word in words)
    if os.pread(fd, len(expected), 0) != expected:
        os.close(fd)
        raise OSError(
            f"descriptor {number} of process {pid} is not the file of this store"
        )
    return fd
