"""Compressors of a chunk's records, by their number in the chunk's header."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, NamedTuple, Protocol

from bluecomm.required_package import require_package


class _Transform(Protocol):
    def __call__(self, data: bytes, /) -> bytes: ...


class RecordCompressor(NamedTuple):
    """How a chunk's records are stored.

    Attributes:
        number: Its number in the header.
        compress: Returns the stored form of bytes.
        decompress: Returns the bytes of a stored form. Raises ValueError if the stored
            form is damaged.
        most_ratio: How many times as many bytes a stored form can hold.
    """

    number: int
    compress: _Transform
    decompress: _Transform
    most_ratio: int


def _same(data: bytes, /) -> bytes:
    return data


def _gzip(data: bytes, /) -> bytes:
    # Without the time, equal records make equal files.
    return gzip.compress(data, mtime=0)


def _gunzip(data: bytes, /) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"gzip cannot decompress it ({error})") from error


def _snappy(data: bytes, /) -> bytes:
    return bytes(_library().snappy.compress(data))


def _unsnappy(data: bytes, /) -> bytes:
    library = _library()
    try:
        return bytes(library.snappy.decompress(data))
    except library.DecompressionError as error:
        raise ValueError(f"snappy cannot decompress it ({error})") from error


def _library() -> Any:
    require_package("cramjam", "2.8", "RecordIO with snappy")
    import cramjam

    return cramjam


# Snappy copies up to 64 bytes with 3, and deflate up to 258 with 2 bits.
COMPRESSORS = {
    "none": RecordCompressor(0, _same, _same, 1),
    "snappy": RecordCompressor(1, _snappy, _unsnappy, 22),
    "gzip": RecordCompressor(2, _gzip, _gunzip, 1033),
}


def compressor_named(name: str) -> RecordCompressor:
    """Return a compressor.

    Raises:
        ValueError: None has this name.
    """
    if name not in COMPRESSORS:
        raise ValueError(
            f"RecordIO: there is no compressor {name!r}; use one of "
            f"{', '.join(COMPRESSORS)}"
        )
    return COMPRESSORS[name]
