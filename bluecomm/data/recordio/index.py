"""The index file of a RecordIO file, which saves the scan of its headers."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib

from bluecomm.data.recordio.scan import ChunkLocation, scan_headers

_MAGIC = b"BCRIOIX1"
_HEAD = struct.Struct("<8sQQ")
_CHUNK = struct.Struct("<QII")
_CHECKSUM = struct.Struct("<I")


def index_path(path: str) -> str:
    """Return the name of a file's index."""
    return f"{path}.index"


def write_index(path: str, chunks: list[ChunkLocation]) -> None:
    """Write the index of a file, in one step for readers."""
    head = _HEAD.pack(_MAGIC, os.stat(path).st_size, len(chunks))
    data = head + b"".join(_CHUNK.pack(*chunk) for chunk in chunks)
    target = index_path(path)
    unfinished = f"{target}.{os.getpid()}.unfinished"
    try:
        with open(unfinished, "wb") as file:
            file.write(data + _CHECKSUM.pack(zlib.crc32(data)))
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def load_chunks(path: str) -> list[ChunkLocation]:
    """Return the chunks of a file, from its index if that fits, else by a scan.

    An index of another size of the file, or a damaged one, is ignored.

    Raises:
        CorruptedFileError: The scan found a damaged header.
    """
    found = _read_index(path)
    return scan_headers(path) if found is None else found


def _read_index(path: str) -> list[ChunkLocation] | None:
    try:
        with open(index_path(path), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    body, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(body) < _HEAD.size or checksum != _CHECKSUM.pack(zlib.crc32(body)):
        return None
    magic, size, count = _HEAD.unpack_from(body)
    fits = len(body) == _HEAD.size + count * _CHUNK.size
    if magic != _MAGIC or not fits or size != os.stat(path).st_size:
        return None
    return [ChunkLocation(*one) for one in _CHUNK.iter_unpack(body[_HEAD.size :])]
