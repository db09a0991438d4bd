"""Writes RecordIO files."""

from __future__ import annotations

import os

from bluecomm.data.recordio.chunk import HEADER_NBYTES, MOST_NBYTES, encode_chunk
from bluecomm.data.recordio.compressors import compressor_named
from bluecomm.data.recordio.index import write_index
from bluecomm.data.recordio.scan import ChunkLocation
from bluecomm.data.whole_file import WholeFileWriter

_LENGTH_NBYTES = 4


class RecordIOWriter(WholeFileWriter):
    """Writes a RecordIO file and its index.

    ::

        with RecordIOWriter("train.recordio", compressor="gzip") as writer:
            for record in records:
                writer.write(record)

    The file appears under its name when the writer is closed. If the ``with`` block
    raises, no file is left, and an older one of this name stays.

    Args:
        path: The file.
        compressor: ``"none"``, ``"snappy"`` (needs cramjam) or ``"gzip"``.
        chunk_nbytes: Bytes of records after which a chunk ends. A reader loads a whole
            chunk, so small chunks make random access cheaper, and compress less.

    Raises:
        ValueError: No compressor has this name, or ``chunk_nbytes`` is not from 1 to
            2 GiB.
        OSError: The file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compressor: str = "none",
        chunk_nbytes: int = 1 << 20,
    ) -> None:
        if not 1 <= chunk_nbytes <= 1 << 31:
            raise ValueError(
                f"RecordIOWriter: chunk_nbytes must be from 1 to {1 << 31}, got "
                f"{chunk_nbytes}"
            )
        self._compressor = compressor_named(compressor)
        self._compressor.compress(b"")  # fails now if its library is missing
        super().__init__(path)
        self._chunk_nbytes = chunk_nbytes
        self._records: list[bytes] = []
        self._nbytes = 0
        self._chunks: list[ChunkLocation] = []
        self._file = open(self._unfinished, "wb")  # noqa: SIM115

    def write(self, record: bytes) -> None:
        """Append a record.

        Raises:
            TypeError: It is not bytes.
            ValueError: It has more than 4 GiB, or the writer is closed.
        """
        if not self._is_open:
            raise ValueError(
                f"RecordIOWriter: {self._path} is closed; make a new writer"
            )
        if not isinstance(record, bytes):
            raise TypeError(
                f"RecordIOWriter: a record is bytes, got {type(record).__name__}; "
                "encode it first, for example with pickle.dumps"
            )
        if len(record) > MOST_NBYTES - _LENGTH_NBYTES:
            raise ValueError(
                f"RecordIOWriter: a record has at most "
                f"{MOST_NBYTES - _LENGTH_NBYTES} bytes, got {len(record)}; split it"
            )
        if self._nbytes + len(record) + _LENGTH_NBYTES > MOST_NBYTES:
            self._end_chunk()
        self._records.append(record)
        self._nbytes += len(record) + _LENGTH_NBYTES
        if self._nbytes >= self._chunk_nbytes:
            self._end_chunk()

    def close(self) -> None:
        """Write the last chunk and the index, and give the file its name."""
        was_open = self._is_open
        super().close()
        if was_open:
            write_index(self._path, self._chunks)

    def _write_rest(self) -> None:
        self._end_chunk()
        self._file.close()

    def _close_file(self) -> None:
        self._file.close()

    def _end_chunk(self) -> None:
        if not self._records:
            return
        data = encode_chunk(self._records, self._compressor)
        stored = len(data) - HEADER_NBYTES
        self._chunks.append(
            ChunkLocation(self._file.tell(), stored, len(self._records))
        )
        self._file.write(data)
        self._records = []
        self._nbytes = 0
