"""Ranks that read a dataset through the cluster cache.

``python -m tests.support.cluster_cache FILE VICTIM...`` reads two epochs with workers.
Then the victims kill themselves while all ranks read, and the others read everything
twice more. The first rank prints the samples that were loaded in each part.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import bluecomm as bf
from tests.support.deadlines import DEADLINE_S

LENGTH = 60
BUDGET = 16 << 20
_NBYTES = (1 << 10, 100 << 10)


class Recorded:
    """Writes the number of each sample that is loaded, by any process, to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.path, "ab", buffering=0) as file:
            file.write(bytes([index]))
        # Small and large values travel in different ways.
        return torch.full((_NBYTES[index % 2],), index, dtype=torch.uint8), index


class Reader:
    """Reads the dataset, and tells what has been loaded meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        bf.barrier()
        self.dataset = bf.data.CachedDataset(Recorded(path), "cluster", budget=BUDGET)
        # The start method of the tests' ranks would have the worker import torch anew.
        options = {"num_workers": 1, "multiprocessing_context": "fork"}
        self.loader = bf.data.DataLoader(self.dataset, batch_size=1, seed=1, **options)
        self._seen = 0

    def epoch(self) -> list[int]:
        """Read this rank's part, with a worker; return the samples that were loaded."""
        for images, labels in self.loader:
            assert (images == labels[0]).all()
        return self.loaded()

    def read(self, indices: range) -> None:
        """Read samples in this process."""
        for index in indices:
            image, label = self.dataset[index]
            assert label == index
            assert (image == index).all()

    def loaded(self) -> list[int]:
        """Return the samples that any rank has loaded since the last call."""
        bf.barrier()
        data = self.path.read_bytes()
        bf.barrier()
        found = sorted(data[self._seen :])
        self._seen = len(data)
        return found


def main() -> None:
    """Read, and let some ranks die."""
    path, *victims = sys.argv[1:]
    bf.init()
    reader = Reader(Path(path))
    parts = [reader.epoch(), reader.epoch()]
    if str(bf.rank()) in victims:
        reader.read(range(LENGTH // 3))
        os.kill(os.getpid(), signal.SIGKILL)
    reader.read(range(LENGTH))
    deadline = time.monotonic() + DEADLINE_S
    while len(bf.elastic.members()) > bf.size() - len(victims):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(3):
        parts.append(reader.loaded())
        reader.read(range(LENGTH))
    if bf.rank() == 0:
        print(json.dumps(parts), flush=True)
    assert reader.dataset.failures == 0
    bf.shutdown()
    # The memory of this machine is left.
    reader.read(range(LENGTH))


if __name__ == "__main__":
    main()
