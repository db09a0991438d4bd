"""Times hits of the stores of ``CachedDataset``, beside reads without a store."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from bluecomm.data.cached_dataset import CachedDataset

WORD_NBYTES = 8


class ReadTimes(NamedTuple):
    """The seconds of each read of a reader.

    Attributes:
        nbytes: Bytes of a sample.
        reader: Name of the dataset or store that is read.
        seconds: Seconds of each read, with the sum of all words of the sample.
    """

    nbytes: int
    reader: str
    seconds: list[float]


class Tensors(Dataset[torch.Tensor]):
    """Tensors whose words are their number."""

    def __init__(self, nbytes: int, samples: int) -> None:
        self._words = nbytes // WORD_NBYTES
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self._words,), index)


def budget_for(nbytes: int, samples: int) -> int:
    """Return the bytes of memory in which some samples are kept for certain.

    Args:
        nbytes: Bytes of a sample.
        samples: Number of samples.
    """
    # 64 times, because a value may have 1/64 of the budget, and twice for slabs that
    # are not full.
    return 128 * max(2 * nbytes, 64 << 10) + 2 * samples * nbytes


def time_reads(folder: Path, nbytes: int, samples: int, rounds: int) -> list[ReadTimes]:
    """Return the times of all readers, which take turns.

    Args:
        folder: Folder for files, which does not exist.
        nbytes: Bytes of a sample.
        samples: Number of samples.
        rounds: Number of turns.

    Raises:
        RuntimeError: A reader read something else than was kept.
    """
    folder.mkdir(parents=True)
    dataset = Tensors(nbytes, samples)
    tensors = [dataset[i] for i in range(samples)]
    budget = budget_for(nbytes, samples)
    cached = {"memory": CachedDataset(dataset, "memory", budget=budget)}
    readers: dict[str, Callable[[int], Any]] = {"plain tensors": tensors.__getitem__}
    raw = None
    if importlib.util.find_spec("lmdb") is not None:
        cached["lmdb"] = CachedDataset(dataset, "lmdb", path=folder / "store")
        raw = _raw_lmdb(folder / "raw", tensors)
        readers["raw lmdb"] = _RawReader(raw)
    readers.update({name: one.__getitem__ for name, one in cached.items()})
    times = {name: ReadTimes(nbytes, name, []) for name in readers}
    expected = sum(range(samples)) * (nbytes // WORD_NBYTES)
    # The first turn loads and maps, and is not counted.
    for turn in range(rounds + 1):
        for name, read in readers.items():
            seconds, total = timed_turn(read, samples)
            if total != expected:
                raise RuntimeError(f"{name} read {total} instead of {expected}")
            if turn > 0:
                times[name].seconds.extend(seconds)
    for one in cached.values():
        one.close()
    if raw is not None:
        raw.close()
    return list(times.values())


def timed_turn(read: Callable[[int], Any], samples: int) -> tuple[list[float], int]:
    """Return the seconds of each sample, and the sum of all words."""
    seconds = []
    total = 0
    for index in range(samples):
        begin = time.perf_counter()
        total += int(read(index).sum())
        seconds.append(time.perf_counter() - begin)
    return seconds, total


def _raw_lmdb(path: Path, tensors: list[torch.Tensor]) -> Any:
    """Return an LMDB file with the bytes of tensors."""
    import lmdb

    environment = lmdb.open(str(path), map_size=1 << 34, sync=False)
    with environment.begin(write=True) as transaction:
        for number, tensor in enumerate(tensors):
            transaction.put(number.to_bytes(8, "big"), tensor.numpy().tobytes())
    return environment


class _RawReader:
    """Reads a value in a transaction of its own, into a tensor that may be written."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __call__(self, index: int) -> torch.Tensor:
        with self._environment.begin(buffers=True) as transaction:
            data = bytearray(transaction.get(index.to_bytes(8, "big")))
        return torch.frombuffer(data, dtype=torch.int64)
