"""CachedDataset: one load per sample, workers, and stores that fail."""

import time
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from bluecomm.data import cached_dataset
from bluecomm.data.cached_dataset import CachedDataset
from bluecomm.data.stores.memory.memory_store import MemoryStore
from bluecomm.data.stores.store import MISSING, SampleStore
from tests.support.deadlines import wait_until
from tests.support.forks import fork, kill, outcome
from tests.support.stand_in import replace_in

BUDGET = 16 << 20


class Counted:
    """Appends the number of each sample that is loaded, by any process, to a file."""

    def __init__(self, path, length=20, nbytes=100 << 10):
        self.path = path
        self.length = length
        self.nbytes = nbytes
        path.write_bytes(b"")

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with open(self.path, "ab", buffering=0) as file:
            file.write(bytes([index]))
        return torch.full((self.nbytes // 8,), index), {"label": index}

    def loaded(self):
        return sorted(self.path.read_bytes())


@pytest.fixture
def counted(tmp_path):
    return Counted(tmp_path / "loaded")


def check(sample, index):
    assert (sample[0] == index).all()
    assert sample[1] == {"label": index}


def test_each_sample_is_loaded_once(counted):
    dataset = CachedDataset(counted, budget=BUDGET)
    assert len(dataset) == 20
    for index in (*range(20), *range(-20, 20)):
        check(dataset[index], index % 20)
    assert counted.loaded() == list(range(20))
    assert (dataset.hits, dataset.misses, dataset.failures) == (40, 20, 0)
    with pytest.raises(IndexError, match="sample 20 does not exist; there are 20"):
        dataset[20]
    dataset.close()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_share_the_cache(counted, start):
    dataset = CachedDataset(counted, budget=BUDGET)
    check(dataset[7], 7)
    for _ in range(2 if start == "fork" else 1):
        loader = DataLoader(
            dataset,
            batch_size=5,
            num_workers=2 if start == "fork" else 1,
            multiprocessing_context=start,
        )
        for number, (images, labels) in enumerate(loader):
            expected = torch.arange(5 * number, 5 * number + 5)
            assert torch.equal(images[:, 0], expected)
            assert torch.equal(labels["label"], expected)
    for index in range(20):
        check(dataset[index], index)
    assert counted.loaded() == list(range(20))
    dataset.close()


def test_processes_that_miss_together_load_once(counted):
    dataset = CachedDataset(counted, budget=BUDGET)

    def child():
        for index in range(20):
            check(dataset[index], index)

    forks = [fork(child) for _ in range(4)]
    assert [outcome(pid) for pid in forks] == [0] * 4
    assert counted.loaded() == list(range(20))
    dataset.close()


def test_the_sample_of_a_killed_loader_is_loaded_by_the_next(counted):
    dataset = CachedDataset(counted, budget=BUDGET)

    def child():
        load = counted.__class__.__getitem__

        def stuck(self, index):
            load(self, index)
            time.sleep(1000)

        counted.__class__.__getitem__ = stuck
        dataset[3]

    pid = fork(child)
    wait_until(counted.loaded, "the fork loads")
    kill(pid)
    check(dataset[3], 3)
    assert counted.loaded() == [3, 3]
    dataset.close()


class Failing(SampleStore):
    """Fails to read, or to write, as often as it is told to."""

    def __init__(self, reads=0, writes=0):
        self.reads = reads
        self.writes = writes
        self.values = {}
        self.loads = 0

    def open(self, world, length, fingerprint):
        self.fingerprint = fingerprint

    def get(self, key):
        self.reads -= 1
        if self.reads >= 0:
            raise OSError("cannot reach it")
        return self.values.get(key, MISSING)

    def put(self, key, value, cost_s):
        self.writes -= 1
        if self.writes >= 0:
            raise OSError("it is full")
        self.values[key] = value

    def loading(self, key):
        self.loads += 1
        return super().loading(key)

    def close(self):
        pass


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"reads": 2}, "cannot read the store: cannot reach it. Training goes on"),
        ({"writes": 2}, "cannot write to the store: it is full. Training goes on"),
    ],
)
def test_a_store_that_fails_is_reported_once_and_tried_later(
    counted, monkeypatch, options, match
):
    now = [100.0]
    replace_in(monkeypatch, cached_dataset, "time", monotonic=lambda: now[0])
    store = Failing(**options)
    dataset = CachedDataset(counted, store)
    with pytest.warns(UserWarning, match=match):
        check(dataset[1], 1)
    loads = store.loads
    check(dataset[1], 1)  # in the pause the store is not asked
    assert dataset.failures == 1
    # Nor for a lock, if it does not answer.
    assert store.loads - loads == ("writes" in options)
    now[0] += 31
    check(dataset[1], 1)
    assert dataset.failures == 2
    now[0] += 31
    for _ in range(2):
        check(dataset[1], 1)
    assert dataset.hits == 1
    assert counted.loaded() == [1] * 4


def test_training_goes_on_without_a_store_that_cannot_be_opened(counted, tmp_path):
    path = tmp_path / "cache"
    path.write_text("a file")
    with pytest.warns(UserWarning, match="cannot open the store: .*File exists"):
        dataset = CachedDataset(counted, "lmdb", path=path)
    for _ in range(2):
        check(dataset[1], 1)
    assert (dataset.hits, dataset.failures) == (0, 1)
    dataset.close()


class Unreachable(Failing):
    """Fails in each process."""

    def get(self, key):
        raise OSError("cannot reach it.")


class Reporting(CachedDataset):
    """Returns as samples how many warnings reading the wrapped samples has caused."""

    def __getitem__(self, index):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            super().__getitem__(index)
        assert all("it. Training goes on" in str(one.message) for one in caught)
        return len(caught)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_report_a_store_that_fails_once_in_all_epochs(context):
    dataset = Reporting(range(4), Unreachable())
    # One worker at a time, because two that fail at the same moment may both report.
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context=context)
    assert sum(sum(loader) + sum(loader)) == 1
    assert dataset.failures == 2


def test_samples_that_cannot_be_kept_are_reported_once(counted):
    class Functions(Counted):
        def __getitem__(self, index):
            return lambda: index

    dataset = CachedDataset(Functions(counted.path), budget=BUDGET)
    with pytest.warns(UserWarning, match="cannot keep sample 1: .*cannot be pickled"):
        assert dataset[1]() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataset[1]() == 1
    assert dataset.failures == 2
    dataset.close()


def test_an_error_of_the_dataset_reaches_the_caller(counted):
    class Broken(Counted):
        def __getitem__(self, index):
            raise KeyError(index)

    dataset = CachedDataset(Broken(counted.path), budget=BUDGET)
    for _ in range(2):
        with pytest.raises(KeyError):
            dataset[1]
    dataset.close()


def test_the_fingerprint_tells_datasets_apart(counted):
    def fingerprint(dataset, **options):
        store = Failing()
        CachedDataset(dataset, store, **options)
        return store.fingerprint

    class Versioned(Counted):
        files = ("a", 1)

        def fingerprint(self):
            return dict([self.files])

    versioned = Versioned(counted.path)
    found = [
        fingerprint(counted),
        fingerprint(counted, version="2"),
        fingerprint(Counted(counted.path, length=3)),
        fingerprint(versioned),
    ]
    assert CachedDataset(versioned, Failing()).fingerprint() == {"a": 1}
    versioned.files = ("a", 2)
    found.append(fingerprint(versioned))
    assert len(set(found)) == 5
    assert fingerprint(counted) == found[0]
    assert CachedDataset(counted, Failing()).fingerprint() == {}


def test_a_store_serves_one_dataset(counted):
    store = Failing()
    dataset = CachedDataset(counted, store)
    with pytest.raises(ValueError, match="another dataset uses this store, and would"):
        CachedDataset(["other"], store)
    check(dataset[1], 1)
    dataset.close()
    assert len(CachedDataset(["other"], store)) == 1


def test_wrong_calls_are_refused(counted):
    with pytest.raises(ValueError, match="there is no store 'disk'; use one of memory"):
        CachedDataset(counted, "disk")
    with pytest.raises(TypeError, match="pass budget to the store itself"):
        CachedDataset(counted, MemoryStore(BUDGET), budget=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        CachedDataset(counted, size=1)
    with pytest.raises(TypeError, match=r"expected a map-style dataset, .* got int"):
        CachedDataset(3)
