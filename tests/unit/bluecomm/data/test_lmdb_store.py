"""The store in an LMDB file."""

import pickle

import pytest
import torch

from bluecomm.data.stores.lmdb_store import LmdbStore
from bluecomm.data.stores.store import MISSING
from bluecomm.data.world import DataWorld
from tests.support.forks import (
    fork_until_ready,
    in_fork,
    kill,
)
from tests.unit.bluecomm.data.loaded_once import check_loaded_once

SAMPLE = (torch.arange(1000), {"label": 3}, {1, 2})


def opened(path, fingerprint="", **options):
    store = LmdbStore(path, **options)
    store.open(DataWorld(0, 1), 100, fingerprint)
    return store


@pytest.fixture
def store(tmp_path):
    made = opened(tmp_path / "cache")
    yield made
    made.close()


def check(value):
    assert torch.equal(value[0], SAMPLE[0])
    assert value[1:] == SAMPLE[1:]


def test_values_outlive_the_store(tmp_path):
    store = opened(tmp_path)
    assert store.get(1) is MISSING
    store.put(1, SAMPLE, 1.0)
    check(store.get(1))
    store.get(1)[0].zero_()
    store.close()
    store = opened(tmp_path)
    check(store.get(1))
    store.close()


def test_forks_and_spawned_processes_share_values(store):
    store.put(1, SAMPLE, 1.0)

    def child():
        check(store.get(1))
        store.put(2, SAMPLE, 1.0)
        sent = pickle.loads(pickle.dumps(store))
        store.close()
        check(sent.get(1))

    in_fork(child)
    check(store.get(2))


def test_values_of_another_dataset_are_dropped(tmp_path):
    store = opened(tmp_path, "a")
    store.put(1, SAMPLE, 1.0)
    store.close()
    with pytest.warns(UserWarning, match="has 1 values of another dataset"):
        store = opened(tmp_path, "b")
    assert store.get(1) is MISSING
    store.close()
    with pytest.warns(UserWarning, match="has 0 values of another dataset"):
        store = opened(tmp_path, "a")
    assert store.get(1) is MISSING
    store.close()


def test_a_full_file_is_an_error_and_stays_readable(tmp_path):
    store = opened(tmp_path, budget=1 << 20)
    store.put(0, torch.zeros(4096), 1.0)
    with pytest.raises(OSError, match=r"LMDB in .*MDB_MAP_FULL"):
        store.put(1, torch.zeros(1 << 20), 1.0)
    assert (store.get(0) == 0).all()
    store.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        opened(tmp_path / "file" / "cache")


def test_a_killed_writer_leaves_nothing_locked(store):
    def child(pause):
        with store.loading(7), store._writing() as transaction:
            transaction.put(b"x", b"y")
            pause()

    pid = fork_until_ready(child)
    kill(pid)
    with store.loading(7):
        store.put(7, SAMPLE, 1.0)
    check(store.get(7))
    with store._environment.begin() as transaction:
        assert transaction.get(b"x") is None


def test_a_stopped_writer_makes_the_others_go_on(store, monkeypatch):
    monkeypatch.setattr("bluecomm.data.stores.lmdb_store._WRITE_LIMIT_S", 0.05)
    monkeypatch.setattr("bluecomm.data.stores.lmdb_store._LOADING_LIMIT_S", 0.05)

    def child(pause):
        with store.loading(7), store._writing():
            pause()

    pid = fork_until_ready(child)
    with (
        store.loading(7),
        pytest.raises(TimeoutError, match=r"another process has written .* stopped"),
    ):
        store.put(7, SAMPLE, 1.0)
    kill(pid)


def test_a_dataset_is_loaded_once_by_all_processes(tmp_path):
    check_loaded_once(tmp_path, SAMPLE, check, "lmdb", path=tmp_path / "cache")
