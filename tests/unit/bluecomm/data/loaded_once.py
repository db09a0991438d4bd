"""Samples that several processes read, and one loads."""

from bluecomm.data.cached_dataset import CachedDataset
from tests.support.forks import fork, outcome

_LENGTH = 20


class _Recorded:
    """Writes each index that is loaded to a file."""

    def __init__(self, path, sample):
        self._path, self._sample = path, sample
        path.write_bytes(b"")

    def __len__(self):
        return _LENGTH

    def __getitem__(self, index):
        with open(self._path, "ab", buffering=0) as file:
            file.write(bytes([index]))
        return self._sample


def check_loaded_once(folder, sample, check, store, **options):
    """Read all samples in three processes; each sample is loaded by one of them."""
    loaded = folder / "loaded"
    dataset = CachedDataset(_Recorded(loaded, sample), store, **options)

    def child():
        for index in range(_LENGTH):
            check(dataset[index])

    forks = [fork(child) for _ in range(3)]
    assert [outcome(pid) for pid in forks] == [0] * 3
    assert sorted(loaded.read_bytes()) == list(range(_LENGTH))
    dataset.close()
