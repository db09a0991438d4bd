"""RecordIO files as a map-style dataset."""

from __future__ import annotations

import bisect
import collections
import itertools
import operator
import os
from collections.abc import Callable
from typing import Any, Literal

from torch.utils.data import Dataset

from bluecomm.data.corrupted_file import CorruptedFileError
from bluecomm.data.file_names import FileNames, file_names
from bluecomm.data.recordio.index import load_chunks, load_intact
from bluecomm.data.recordio.scan import ChunkLocation, read_chunk


class RecordIODataset(Dataset[Any]):
    """The records of RecordIO files, by number.

    A record's chunk is read, checked and decompressed as a whole, and the last chunks
    stay in memory. So neighbors are cheap, and a record in a random order costs one
    chunk: write small chunks for random orders, or cache the dataset
    (``CachedDataset``).

    Args:
        paths: A file, or files in the order of their records.
        decode: Called with the bytes of a record; its result is the sample. Default:
            the bytes.
        on_corrupt: ``"raise"``: a damaged chunk raises ``CorruptedFileError`` when one
            of its records is read. ``"skip"``: the files are read once at the start,
            damaged chunks are left out, and ``damage`` lists them.
        kept_nbytes: Bytes of records to keep in memory, per process. The chunk that was
            read last stays in any case.

    Attributes:
        damage: The errors of the chunks that ``"skip"`` left out.

    Raises:
        ValueError: ``on_corrupt`` has another value, or there is no file.
        CorruptedFileError: A header is damaged, or a file is truncated.
        OSError: A file cannot be read.
    """

    def __init__(
        self,
        paths: FileNames,
        *,
        decode: Callable[[bytes], Any] | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
        kept_nbytes: int = 32 << 20,
    ) -> None:
        if on_corrupt not in ("raise", "skip"):
            raise ValueError(
                f"RecordIODataset: on_corrupt must be 'raise' or 'skip', got "
                f"{on_corrupt!r}"
            )
        names = file_names(paths, "RecordIODataset")
        self.damage: list[CorruptedFileError] = []
        self._decode = decode
        self._kept_nbytes = kept_nbytes
        # Path and location of each chunk.
        self._chunks: list[tuple[str, ChunkLocation]] = []
        self._fingerprint: dict[str, list[int]] = {}
        for name in names:
            chunks = self._load(name, on_corrupt)
            self._chunks += [(name, chunk) for chunk in chunks]
            records = sum(chunk.records for chunk in chunks)
            self._fingerprint[name] = [os.stat(name).st_size, records]
        # Number of the first record of each chunk, and the number of all records.
        counts = (chunk.records for _, chunk in self._chunks)
        self._begins = list(itertools.accumulate(counts, initial=0))
        self._kept: collections.OrderedDict[int, list[bytes]] = (
            collections.OrderedDict()
        )
        self._nbytes = 0

    def _load(self, name: str, on_corrupt: str) -> list[ChunkLocation]:
        if on_corrupt == "raise":
            return load_chunks(name)
        chunks, damage = load_intact(name)
        self.damage += damage
        return chunks

    def __len__(self) -> int:
        """Return the number of records."""
        return self._begins[-1]

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            IndexError: There is no record of this number.
            CorruptedFileError: Its chunk is damaged.
        """
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"RecordIODataset: record {number} does not exist; there are "
                f"{len(self)}"
            )
        number %= len(self)
        position = bisect.bisect_right(self._begins, number) - 1
        record = self._records_of(position)[number - self._begins[position]]
        return record if self._decode is None else self._decode(record)

    def fingerprint(self) -> dict[str, list[int]]:
        """Return the size in bytes and the number of records of each file."""
        return dict(self._fingerprint)

    def _records_of(self, position: int) -> list[bytes]:
        """Return the records of a chunk, and keep them for the next call."""
        records = self._kept.get(position)
        if records is not None:
            self._kept.move_to_end(position)
            return records
        records = read_chunk(*self._chunks[position])
        self._kept[position] = records
        self._nbytes += sum(map(len, records))
        while self._nbytes > self._kept_nbytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._nbytes -= sum(map(len, oldest))
        return records

    def __getstate__(self) -> dict[str, Any]:
        """Leave the chunks in memory out of what a worker process receives."""
        return self.__dict__ | {"_kept": collections.OrderedDict(), "_nbytes": 0}
