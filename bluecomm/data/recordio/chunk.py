"""A chunk of a RecordIO file: a header, and records that are stored together.

All numbers are little-endian and unsigned, of 32 bits::

    header    0x01020304, CRC32 of the stored bytes, number of the compressor,
              stored bytes, number of records
    stored    the compressed form of: (length, bytes) of each record
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bfrun.wording import count
from bluecomm.data.recordio.compressors import COMPRESSORS, RecordCompressor

_MAGIC = 0x01020304
MAGIC_BYTES = struct.pack("<I", _MAGIC)
_HEADER = struct.Struct("<5I")
HEADER_NBYTES = _HEADER.size
_LENGTH = struct.Struct("<I")
MOST_NBYTES = (1 << 32) - 1
_BY_NUMBER = {one.number: one for one in COMPRESSORS.values()}


class ChunkHeader(NamedTuple):
    """The header of a chunk without its magic number.

    Attributes:
        checksum: CRC32 of the stored bytes.
        compressor: Number of the compressor.
        stored_nbytes: Bytes after the header.
        records: Number of records.
    """

    checksum: int
    compressor: int
    stored_nbytes: int
    records: int


def encode_chunk(records: Sequence[bytes], compressor: RecordCompressor) -> bytes:
    """Return the bytes of a chunk, with its header.

    Raises:
        ValueError: The chunk would exceed 4 GiB.
    """
    stored = compressor.compress(b"".join(_with_lengths(records)))
    if len(stored) > MOST_NBYTES:
        raise ValueError(
            f"RecordIO: a chunk of {len(records)} records would have {len(stored)} "
            f"bytes, and the format allows {MOST_NBYTES}; store smaller records, or "
            "compress them"
        )
    header = (_MAGIC, zlib.crc32(stored), compressor.number, len(stored), len(records))
    return _HEADER.pack(*header) + stored


def _with_lengths(records: Iterable[bytes]) -> Iterable[bytes]:
    for record in records:
        yield _LENGTH.pack(len(record))
        yield record


def parse_header(data: bytes) -> ChunkHeader:
    """Return the header that begins a chunk.

    Args:
        data: The first bytes of the chunk, or fewer at the end of the file.

    Raises:
        ValueError: It is no header of a chunk.
    """
    if len(data) < HEADER_NBYTES:
        raise ValueError(
            f"a chunk's header has {HEADER_NBYTES} bytes, and the file ends after "
            f"{len(data)}"
        )
    magic, *fields = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"a chunk begins with 0x{_MAGIC:08x}, not with 0x{magic:08x}")
    header = ChunkHeader(*fields)
    if header.compressor not in _BY_NUMBER:
        raise ValueError(f"the chunk's compressor {header.compressor} is unknown")
    # The checksum leaves the header out, and the length of a dataset is made of these.
    if header.stored_nbytes and not header.records:
        raise ValueError(
            f"the chunk has {header.stored_nbytes} stored bytes and no record"
        )
    ratio = _BY_NUMBER[header.compressor].most_ratio
    if header.records * _LENGTH.size > header.stored_nbytes * ratio:
        raise ValueError(
            f"the chunk's {header.stored_nbytes} stored bytes cannot hold "
            f"{count(header.records, 'record')}"
        )
    return header


def decode_chunk(header: ChunkHeader, stored: bytes) -> list[bytes]:
    """Return the records of a chunk.

    Args:
        header: Its header.
        stored: The bytes that follow the header, fewer if the file ends.

    Raises:
        ValueError: The chunk is damaged.
        ImportError: The library of its compressor is not installed.
    """
    check_stored(header, stored)
    data = _BY_NUMBER[header.compressor].decompress(stored)
    records = []
    at = 0
    for number in range(header.records):
        begin = at + _LENGTH.size
        length = _LENGTH.unpack_from(data, at)[0] if begin <= len(data) else 0
        at = begin + length
        if at > len(data):
            raise ValueError(f"record {number} exceeds its chunk")
        records.append(data[begin:at])
    if at != len(data):
        raise ValueError(
            f"{len(data) - at} bytes follow the last of the {header.records} records"
        )
    return records


def check_stored(header: ChunkHeader, stored: bytes) -> None:
    """Compare the stored bytes of a chunk with its header.

    Raises:
        ValueError: They are too few, or the checksum differs.
    """
    if len(stored) != header.stored_nbytes:
        raise ValueError(
            f"the chunk has {header.stored_nbytes} bytes after its header, and the "
            f"file ends after {len(stored)}"
        )
    checksum = zlib.crc32(stored)
    if checksum != header.checksum:
        raise ValueError(
            f"the chunk's checksum is 0x{header.checksum:08x}, and its bytes have "
            f"0x{checksum:08x}"
        )
