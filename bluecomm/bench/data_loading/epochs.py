"""Times the first and the second epoch of a dataset that is expensive to load."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from bluecomm.data.cached_dataset import CachedDataset

_SAMPLE_WORDS = 1 << 14


class EpochTimes(NamedTuple):
    """The seconds of two epochs."""

    first_s: float
    second_s: float


class _Expensive(Dataset[torch.Tensor]):
    def __init__(self, samples: int, load_s: float) -> None:
        self._samples = samples
        self._load_s = load_s

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._load_s)
        return torch.full((_SAMPLE_WORDS,), index)


def time_epochs(samples: int, load_s: float) -> EpochTimes:
    """Return the times of two epochs with the store in memory.

    Args:
        samples: Samples of the dataset, of 128 KiB each.
        load_s: Seconds to load one.
    """
    budget = 128 * (256 << 10) + 2 * samples * _SAMPLE_WORDS * 8
    dataset = CachedDataset(_Expensive(samples, load_s), budget=budget)
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        for index in range(samples):
            dataset[index].sum()
        times.append(time.perf_counter() - begin)
    dataset.close()
    return EpochTimes(*times)
