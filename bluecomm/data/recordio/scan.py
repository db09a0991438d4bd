"""Finds the chunks of a RecordIO file, also behind damaged ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from bluecomm.data.corrupted_file import CorruptedFileError
from bluecomm.data.recordio.chunk import (
    HEADER_NBYTES,
    MAGIC_BYTES,
    ChunkHeader,
    check_stored,
    decode_chunk,
    parse_header,
)

_REMEDY = (
    "write the file again, or read it with on_corrupt='skip', which leaves out the "
    "damaged chunks"
)
_WINDOW_NBYTES = 1 << 20


class ChunkLocation(NamedTuple):
    """Where a chunk is in its file.

    Attributes:
        offset: Where its header begins, in bytes.
        stored_nbytes: Bytes after the header.
        records: Number of records.
    """

    offset: int
    stored_nbytes: int
    records: int

    @property
    def end(self) -> int:
        """Where the chunk ends, in bytes."""
        return self.offset + HEADER_NBYTES + self.stored_nbytes


def scan_headers(path: str) -> list[ChunkLocation]:
    """Return the chunks of a file; reads the headers only.

    Raises:
        CorruptedFileError: A header is damaged, or the last chunk is truncated.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        chunks: list[ChunkLocation] = []
        at = 0
        while at < size:
            try:
                header = parse_header(os.pread(file.fileno(), HEADER_NBYTES, at))
                chunk = ChunkLocation(at, header.stored_nbytes, header.records)
                if chunk.end > size:
                    raise ValueError(
                        f"the chunk ends at byte {chunk.end}, and the file at {size}"
                    )
            except ValueError as error:
                raise CorruptedFileError(path, at, str(error), _REMEDY) from error
            chunks.append(chunk)
            at = chunk.end
        return chunks


def scan_intact(path: str) -> tuple[list[ChunkLocation], list[CorruptedFileError]]:
    """Return the intact chunks of a file, and the damage; reads the whole file.

    Behind a damaged header the next intact chunk is found by its magic number and its
    checksum. A chunk whose checksum differs is one damage, whose size is known.
    """
    intact: list[ChunkLocation] = []
    damage: list[CorruptedFileError] = []
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at < size:
            chunk = ChunkLocation(at, 0, 0)
            try:
                header, stored = _chunk_at(file, at)
                chunk = ChunkLocation(at, header.stored_nbytes, header.records)
                decode_chunk(header, stored)
                intact.append(chunk)
                at = chunk.end
            except ValueError as error:
                damage.append(CorruptedFileError(path, at, str(error), _REMEDY))
                follows = chunk.stored_nbytes and _begins_chunk(file, chunk.end, size)
                at = chunk.end if follows else _next_intact(file, at + 1, size)
    return intact, damage


def read_chunk(path: str, chunk: ChunkLocation) -> list[bytes]:
    """Return the records of a chunk.

    Raises:
        CorruptedFileError: The chunk is damaged, or another one than expected.
    """
    try:
        with open(path, "rb") as file:
            header, stored = _chunk_at(file, chunk.offset)
        if (header.stored_nbytes, header.records) != chunk[1:]:
            raise ValueError(
                f"expected a chunk of {chunk.records} records in {chunk.stored_nbytes} "
                f"bytes, and its header says {header.records} in "
                f"{header.stored_nbytes}: the file has changed since it was indexed"
            )
        return decode_chunk(header, stored)
    except ValueError as error:
        raise CorruptedFileError(path, chunk.offset, str(error), _REMEDY) from error


def _chunk_at(file: BinaryIO, offset: int) -> tuple[ChunkHeader, bytes]:
    file.seek(offset)
    header = parse_header(file.read(HEADER_NBYTES))
    # A damaged header may name more bytes than the file has, or the memory.
    left = os.fstat(file.fileno()).st_size - file.tell()
    return header, file.read(min(header.stored_nbytes, left))


def _begins_chunk(file: BinaryIO, offset: int, size: int) -> bool:
    if offset == size:
        return True
    file.seek(offset)
    return file.read(len(MAGIC_BYTES)) == MAGIC_BYTES


def _next_intact(file: BinaryIO, begin: int, size: int) -> int:
    """Return where the next chunk with the right checksum begins, or ``size``."""
    for offset in _magic_numbers(file, begin, size):
        try:
            check_stored(*_chunk_at(file, offset))
        except ValueError:
            continue
        return offset
    return size


def _magic_numbers(file: BinaryIO, begin: int, size: int) -> Iterator[int]:
    """Yield where the magic number occurs, in ascending order."""
    at = begin
    while at < size:
        file.seek(at)
        # A number may lie across the end of the window.
        window = file.read(_WINDOW_NBYTES + len(MAGIC_BYTES) - 1)
        found = window.find(MAGIC_BYTES)
        if found >= 0:
            yield at + found
            at += found + 1
        else:
            at += _WINDOW_NBYTES
