"""The store in memory: sharing, eviction, copies on write, and killed processes."""

import gc
import os
import pickle
import signal

import numpy as np
import pytest
import torch

from bluecomm.data.stores.memory import layout, memory_store
from bluecomm.data.stores.memory.memory_store import MemoryStore
from bluecomm.data.stores.memory.slabs import SlabTable, class_of
from bluecomm.data.stores.store import MISSING
from bluecomm.data.world import DataWorld
from tests.support.forks import (
    fork,
    fork_until_ready,
    in_fork,
    kill,
    outcome,
)
from tests.support.stand_in import replace_in

# 64 slabs of 256 KiB.
BUDGET = 16 << 20
# Values of this many bytes are lent, and a slab holds one.
LARGE = 200 << 10
SMALL = 4 << 10


def value_of(key, nbytes=LARGE):
    return torch.full((nbytes // 8,), key)


@pytest.fixture
def store():
    made = MemoryStore(BUDGET)
    made.open(DataWorld(0, 1), 10_000, "")
    yield made
    made.close()


def holds(store, keys, nbytes=LARGE):
    """Return whether the store has the values of all keys, intact."""
    return all(
        torch.equal(value, value_of(key, nbytes))
        for key in keys
        if (value := store.get(key)) is not MISSING or pytest.fail(f"{key} is missing")
    )


def held(store, keys):
    return [key for key in keys if store.get(key) is not MISSING]


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_forks_share_values(store, nbytes):
    store.put(1, value_of(1, nbytes), 1.0)

    def child():
        assert holds(store, [1], nbytes)
        store.put(2, value_of(2, nbytes), 1.0)

    in_fork(child)
    assert holds(store, [1, 2], nbytes)
    assert store.get(3) is MISSING


def test_large_values_are_read_in_place(store):
    """The address of a tensor lies in the mapping of the shared memory."""
    store.put(1, (value_of(1, LARGE // 2), np.arange(LARGE // 16)), 1.0)
    tensor, array = store.get(1)
    with open("/proc/self/maps") as maps:
        spans = [
            line.split()[0].split("-") for line in maps if "bluecomm-cache" in line
        ]
    for address in (tensor.data_ptr(), array.ctypes.data):
        assert any(int(low, 16) <= address < int(high, 16) for low, high in spans)


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_a_write_to_a_sample_changes_nothing_else(store, nbytes):
    nbytes //= 2
    store.put(1, (value_of(1, nbytes), value_of(1, nbytes).numpy()), 1.0)
    tensor, array = store.get(1)
    tensor.zero_()
    array[:] = 0
    # While the first one is in use, the next one is a copy.
    for _ in range(2):
        again = store.get(1)
        assert torch.equal(again[0], value_of(1, nbytes))
        assert np.array_equal(again[1], value_of(1, nbytes).numpy())

    def child():
        assert torch.equal(store.get(1)[0], value_of(1, nbytes))

    in_fork(child)
    assert (tensor == 0).all()
    del tensor, array, again
    # Now the memory of the first one is used again.
    again = store.get(1)
    assert torch.equal(again[0], value_of(1, nbytes))
    assert np.array_equal(again[1], value_of(1, nbytes).numpy())


def test_a_fork_does_not_see_what_its_parent_wrote_to_a_sample(store):
    store.put(1, value_of(1), 1.0)
    sample = store.get(1)
    sample.zero_()

    def child():
        assert holds(store, [1])
        assert (sample == 0).all()

    in_fork(child)


def test_equal_values_do_not_evict_each_other(store):
    for key in range(80):
        store.put(key, value_of(key), 1.0)
    assert held(store, range(80)) == list(range(64))
    assert holds(store, range(64))
    assert store.nbytes_used() <= BUDGET


def test_a_value_evicts_cheaper_ones(store):
    for key in range(64):
        store.put(key, value_of(key), 1.0 if key < 60 else 0.01)
    for key in range(100, 110):
        store.put(key, value_of(key), 30.0)
    # The four cheapest first, then six of the others.
    assert held(store, range(64)) == list(range(6, 60))
    assert holds(store, [*range(6, 60), *range(100, 110)])
    store.put(200, value_of(200), 0.01)
    assert store.get(200) is MISSING


def test_small_values_share_slabs(store):
    keys = range(0, 2000, 2)
    for key in keys:
        store.put(key, value_of(key, 512), 1.0)
    assert holds(store, keys, 512)
    assert store.nbytes_used() < 1000 * 1024


def test_classes_rise_with_seconds_per_byte():
    classes = [class_of(cost, 100) for cost in (0.0, 1e-9, 1e-3, 1.0, 5.0, 1e3)]
    assert classes == sorted(set(classes))
    assert class_of(1e-30, 1 << 40) == 0
    assert class_of(1e60, 1) == 128


def test_a_value_in_use_is_not_evicted(store):
    for key in range(64):
        store.put(key, value_of(key), 1.0)
    sample = store.get(0)
    for key in range(100, 200):
        store.put(key, value_of(key), 30.0)
    assert torch.equal(sample, value_of(0))
    assert held(store, range(64)) == [0]
    assert len(held(store, range(100, 200))) == 63
    del sample
    store.put(300, value_of(300), 30.0)
    assert held(store, [0, 300]) == [300]


def test_a_value_in_use_by_a_killed_process_is_evicted(store):
    for key in range(64):
        store.put(key, value_of(key), 1.0)

    def child(pause):
        sample = store.get(0)
        pause()
        assert sample is not None

    pid = fork_until_ready(child)
    for key in range(100, 164):
        store.put(key, value_of(key), 30.0)
    assert held(store, range(64)) == [0]
    kill(pid)
    store.put(300, value_of(300), 30.0)
    assert held(store, [0, 300]) == [300]


def test_a_value_that_a_fork_has_inherited_stays(store):
    for key in range(64):
        store.put(key, value_of(key), 1.0)
    samples = [store.get(0)]
    go, tell = os.pipe()

    def child():
        os.read(go, 1)
        assert torch.equal(samples[0], value_of(0))

    pid = fork(child)
    samples.clear()
    for key in range(100, 200):
        store.put(key, value_of(key), 30.0)
    assert held(store, range(64)) == [0]
    os.write(tell, b"x")
    assert outcome(pid) == 0
    os.close(go)
    os.close(tell)


class KillsItself:
    """The words of a table; before a given number of stores the process is killed."""

    def __init__(self, words, stores):
        self.words = words
        self.left = stores

    def __getitem__(self, where):
        return self.words[where]

    def __setitem__(self, where, value):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.words[where] = value


@pytest.mark.parametrize("is_full", [False, True])
def test_a_process_may_be_killed_before_each_store(store, is_full):
    """Whatever is left, the next process finds whole values and can go on."""
    if is_full:
        for key in range(64):
            store.put(key, value_of(key), 1e-6)
    cost = 1.0
    for stores in range(100):
        key = 1000 + stores

        def child(stores=stores, key=key, cost=cost):
            attached = store._attachment()
            table = attached.table
            table._words = KillsItself(table._words, stores)
            store.put(key, value_of(key), cost)

        code = outcome(fork(child))
        assert code in (0, -signal.SIGKILL)
        mine = held(store, range(1000, 1000 + stores + 1))
        assert holds(store, [*mine, *held(store, range(64))])
        store.put(key + 500, value_of(key + 500), cost)
        assert holds(store, [key + 500])
        if code == 0:
            break
        cost *= 4  # a class of its own, so that each one needs a slab
    assert stores > 4
    assert key in mine
    assert held(store, range(64)) != list(range(64))


def test_emptying_that_was_cut_short_is_finished(store, monkeypatch):
    for key in range(64):
        store.put(key, value_of(key), 1.0)

    def child():
        monkeypatch.setattr(
            SlabTable, "_empty", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        store.put(100, value_of(100), 30.0)

    assert outcome(fork(child)) == -signal.SIGKILL
    assert holds(store, range(64))
    store.put(200, value_of(200), 30.0)
    assert held(store, [*range(64), 200]) == [*range(1, 64), 200]


def test_a_process_killed_with_a_lock_frees_it(store):
    def child(pause):
        attached = store._attachment()
        with attached.locked(), store.loading(7):
            pause()

    pid = fork_until_ready(child)
    kill(pid)
    store.put(7, value_of(7), 1.0)
    with store.loading(7):
        assert holds(store, [7])


def test_a_stopped_process_makes_the_others_go_on(store, monkeypatch):
    monkeypatch.setattr("bluecomm.data.stores.memory.attachment._TABLE_LIMIT_S", 0.05)
    monkeypatch.setattr(memory_store, "_LOADING_LIMIT_S", 0.05)

    def child(pause):
        attached = store._attachment()
        with store.loading(7), attached.locked():
            pause()

    pid = fork_until_ready(child)
    with pytest.raises(TimeoutError, match="has held the lock of the cache in memory"):
        store.get(1)
    with store.loading(7):
        pass
    kill(pid)
    assert store.get(1) is MISSING


def test_a_rank_without_memory_is_an_error_on_all_ranks(monkeypatch):
    def fail(*_):
        raise OSError("no memory")

    monkeypatch.setattr(memory_store, "create_file", fail)
    with pytest.raises(RuntimeError, match="making the memory failed on rank 0"):
        MemoryStore(BUDGET).open(DataWorld(0, 1), 10, "")


def test_memory_that_cannot_be_had_is_an_error(store, monkeypatch):
    def fail(*_):
        raise OSError("no memory")

    replace_in(monkeypatch, memory_store, "os", posix_fallocate=fail)
    with pytest.raises(OSError, match="no memory"):
        store.put(1, value_of(1), 1.0)
    monkeypatch.undo()
    assert store.get(1) is MISSING
    store.put(1, value_of(1), 1.0)
    assert holds(store, [1])


def test_short_writes_are_continued(store, monkeypatch):
    def short(fd, views, at):
        return os.pwritev(fd, [views[0][:1000]], at)

    replace_in(monkeypatch, memory_store, "os", pwritev=short)
    store.put(1, (value_of(1), b"x"), 1.0)
    assert torch.equal(store.get(1)[0], value_of(1))


def test_wrong_calls_are_refused(store):
    with pytest.raises(ValueError, match="the budget must be at least 4194304 bytes"):
        MemoryStore(1000)
    with pytest.raises(ValueError, match=r"exceeds 1/64 of the budget.*raise the bu"):
        store.put(1, value_of(1, 300 << 10), 1.0)
    with pytest.raises(ValueError, match="it is not open; pass it to a CachedDataset"):
        MemoryStore(BUDGET).get(1)


def test_too_many_processes_are_refused(monkeypatch):
    monkeypatch.setattr("bluecomm.data.stores.memory.attachment.ROWS", 0)
    with pytest.raises(OSError, match="has 0 users already, and no row left"):
        MemoryStore(BUDGET).open(DataWorld(0, 1), 10, "")


def test_a_store_that_is_sent_shares_the_memory(store):
    store.put(1, value_of(1), 1.0)
    sent = pickle.loads(pickle.dumps(store))
    assert holds(sent, [1])
    sent.put(2, value_of(2), 1.0)
    assert holds(store, [2])
    sent.close()


def test_a_store_that_was_sent_after_its_end_is_empty(store):
    store.put(1, value_of(1), 1.0)
    other = MemoryStore(BUDGET)
    other.open(DataWorld(0, 1), 10_000, "")
    sent = pickle.loads(pickle.dumps(other))
    # The number of its descriptor may belong to another file now.
    pid, _, token = sent._origin
    sent._origin = (pid, store._attachment().fd, token)
    other.close()
    with pytest.warns(UserWarning, match="is not the file of this store.* of its own"):
        assert sent.get(1) is MISSING
    sent.put(1, value_of(1), 1.0)
    assert holds(sent, [1])
    sent.close()


class Ranks(DataWorld):
    """Two ranks, forks of the test, which meet in a folder."""

    def __init__(self, rank, folder):
        super().__init__(rank, 2)
        self._folder = folder

    def gather(self, value, name):
        part = self._folder / f"{name}-{self.rank}.part"
        part.write_bytes(pickle.dumps(value))
        part.rename(self._folder / f"{name}-{self.rank}")
        paths = [self._folder / f"{name}-{rank}" for rank in range(2)]
        while not all(path.exists() for path in paths):
            os.sched_yield()
        return [pickle.loads(path.read_bytes()) for path in paths]


def test_ranks_of_a_machine_share_one_memory(tmp_path):
    def rank(number, go):
        store = MemoryStore(BUDGET)
        world = Ranks(number, tmp_path)
        store.open(world, 10, "")
        if number == 0:
            store.put(1, value_of(1), 1.0)
        world.gather(None, "put")
        assert holds(store, [1])
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        os.read(go, 1)
        # The memory is still there, although the rank that made it was killed.
        assert holds(store, [1])
        assert holds(pickle.loads(pickle.dumps(store)), [1])

    go, tell = os.pipe()
    first, second = (fork(rank, number, go) for number in range(2))
    assert outcome(first) == -signal.SIGKILL
    os.write(tell, b"x")
    assert outcome(second) == 0
    os.close(go)
    os.close(tell)


def test_nothing_is_left_in_the_file_system(store):
    gc.collect()
    before = {*os.listdir("/dev/shm"), *os.listdir("/tmp")}
    descriptors = len(os.listdir("/proc/self/fd"))

    def child():
        other = MemoryStore(BUDGET)
        other.open(DataWorld(0, 1), 10, "")
        other.put(1, value_of(1), 1.0)
        new = {*os.listdir("/dev/shm"), *os.listdir("/tmp")} - before
        assert not any("cache" in name for name in new)
        os.kill(os.getpid(), signal.SIGKILL)

    assert outcome(fork(child)) == -signal.SIGKILL
    other = MemoryStore(BUDGET)
    other.open(DataWorld(0, 1), 10, "")
    other.put(1, value_of(1), 1.0)
    sample = other.get(1)
    other.close()
    del other, sample
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_layout_has_whole_pages():
    for keys in (0, 1, 511, 512, 10**6):
        one = layout.CacheLayout(16 * layout.PAGE, keys)
        assert one.values_byte % layout.PAGE == 0
        assert one.values_byte >= (one.keys_word + keys) * 8
