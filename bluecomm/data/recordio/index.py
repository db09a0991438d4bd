"""The index file of a RecordIO file, which saves the scan of its headers."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib

from bluecomm.data.corrupted_file import CorruptedFileError
from bluecomm.data.recordio.scan import ChunkLocation, scan_headers, scan_intact

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

    An index of another size of the file, or a damaged one, is ignored, unless it shows
    that chunks are missing at the end.

    Raises:
        CorruptedFileError: The scan found a damaged header, or chunks are missing.
    """
    indexed, size = _read_index(path)
    if indexed and size == os.stat(path).st_size:
        return indexed
    chunks = scan_headers(path)
    if error := _missing_end(path, chunks, indexed):
        raise error
    return chunks


def load_intact(path: str) -> tuple[list[ChunkLocation], list[CorruptedFileError]]:
    """Return the intact chunks of a file, and the damage; reads the whole file.

    Chunks that the index lists behind the end of the file are one damage.
    """
    chunks, damage = scan_intact(path)
    error = _missing_end(path, chunks, _read_index(path)[0])
    return chunks, damage + ([error] if error else [])


def _missing_end(
    path: str, chunks: list[ChunkLocation], indexed: list[ChunkLocation]
) -> CorruptedFileError | None:
    """Return the error of a file that ends between two chunks of its index."""
    size = os.stat(path).st_size
    missing = [chunk for chunk in indexed if chunk.offset >= size]
    if not missing or missing[0].offset != size or not {*chunks} <= {*indexed}:
        return None
    records = sum(chunk.records for chunk in missing)
    return CorruptedFileError(
        path,
        size,
        f"the file ends here, and its index lists {records} more records",
        f"write the file again, or delete {index_path(path)} if this is all",
    )


def _read_index(path: str) -> tuple[list[ChunkLocation], int]:
    """Return the chunks and the size of the file, or nothing without a whole index."""
    try:
        with open(index_path(path), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return [], 0
    body, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(body) < _HEAD.size or checksum != _CHECKSUM.pack(zlib.crc32(body)):
        return [], 0
    magic, size, count = _HEAD.unpack_from(body)
    if magic != _MAGIC or len(body) != _HEAD.size + count * _CHUNK.size:
        return [], 0
    chunks = [ChunkLocation(*one) for one in _CHUNK.iter_unpack(body[_HEAD.size :])]
    return chunks, size
