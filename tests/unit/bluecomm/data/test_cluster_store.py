"""The store of several machines, some of which are lost, or do not answer."""

import errno
import logging
import os
import pickle
import socket
import threading
import time

import pytest
import torch

from bluecomm.data.cached_dataset import CachedDataset
from bluecomm.data.stores.cluster import local_socket, server
from bluecomm.data.stores.cluster.cluster_store import ClusterStore
from bluecomm.data.stores.cluster.messages import CacheMessage, Kind
from bluecomm.data.stores.store import MISSING
from bluecomm.data.world import DataWorld
from bluecomm.errors import NotInitializedError
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.forks import fork, in_fork, kill
from tests.support.stand_in import replace_in
from tests.unit.bluecomm.data.cluster_network import BUDGET, Network

NBYTES = 100 << 10


@pytest.fixture
def network():
    made = Network()
    yield made
    made.close()


def value_of(key):
    return torch.full((NBYTES // 8,), key), {"label": key}


def check(value, key):
    assert value is not MISSING, key
    assert (value[0] == key).all()
    assert value[1] == {"label": key}


def load(store, key):
    """Read a key as ``CachedDataset`` does; return whether this loads it."""
    if store.get(key) is not MISSING:
        return False
    with store.loading(key):
        value = store.get(key)
        if value is not MISSING:
            check(value, key)
            return False
        store.put(key, value_of(key), 1.0)
        return True


def test_values_are_found_on_all_machines(network):
    first, second = network.stores
    keys = network.keys_of(0, 3) + network.keys_of(1, 3)
    assert all(load(first, key) for key in keys)
    for store in (first, second):
        for key in keys:
            # Found values belong to the reader.
            store.get(key)[0].zero_()
            check(store.get(key), key)
    for rank, store in enumerate(network.stores):
        kept = [key for key in keys if store._memory.has(key)]
        assert kept == network.keys_of(rank, 3)

    def child():
        for key in keys:
            check(first.get(key), key)
            check(pickle.loads(pickle.dumps(second)).get(key), key)
        assert load(first, 999)

    in_fork(child)
    check(second.get(999), 999)


def test_a_server_without_descriptors_takes_connections_later(monkeypatch, caplog):
    attempts = []

    class FailsFirst(socket.socket):
        def accept(self):
            attempts.append(self)
            if len(attempts) <= 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(server, "_ACCEPT_AGAIN_S", 0.01)
    with monkeypatch.context() as patch:
        replace_in(patch, local_socket, "socket", socket=FailsFirst)
        network = Network()
    (key,) = network.keys_of(1, 1)
    assert load(network.stores[0], key)
    check(network.stores[1].get(key), key)
    network.close()
    text = "the cache server of rank 0 cannot take a connection: [Errno 24]"
    assert [record.getMessage()[: len(text)] for record in caplog.records] == [text] * 2


def test_copies_are_kept_until_own_values_need_the_room():
    network = Network(copies=True)
    first, second = network.stores
    loaded, found = network.keys_of(1, 2)
    assert load(first, loaded)  # belongs to the other machine
    assert load(second, found)
    check(first.get(found), found)
    network.cut.add(1)
    for key in (loaded, found):
        assert first._memory.has(key)
        check(first.get(key), key)
    for key in network.keys_of(0, 200):
        first._memory.put(key, value_of(key), 1.0)
    assert not first._memory.has(loaded)
    network.close()


def test_machines_that_miss_together_load_once(network):
    loads = []

    def read(store):
        for key in range(40):
            if load(store, key):
                loads.append(key)

    threads = [
        threading.Thread(target=read, args=[store])
        for store in network.stores
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(loads) == list(range(40))


@pytest.mark.parametrize("owner", [0, 1])
def test_a_claim_passes_on_when_loading_fails(network, owner):
    first, second = network.stores
    key = network.keys_of(owner)[0]

    def fail():
        with first.loading(key):
            assert first.get(key) is MISSING
            raise KeyError(key)

    with pytest.raises(KeyError):
        fail()
    assert load(second, key)
    check(first.get(key), key)


@pytest.mark.parametrize("owner", [0, 1])
def test_a_claim_passes_on_when_its_process_is_killed(network, owner):
    first, second = network.stores
    key = network.keys_of(owner)[0]
    ready, told = os.pipe()

    def child():
        with first.loading(key):
            os.write(told, b"x")
            time.sleep(1000)

    pid = fork(child)
    assert os.read(ready, 1)
    loads = []
    thread = threading.Thread(target=lambda: loads.append(load(second, key)))
    thread.start()
    wait_until(
        lambda: len(network.servers[owner]._part.claims._claims[key].waiting), "wait"
    )
    kill(pid)
    thread.join(DEADLINE_S)
    assert loads == [True]
    for fd in (ready, told):
        os.close(fd)


def test_others_load_after_the_limit(monkeypatch):
    monkeypatch.setattr(server, "LOADING_LIMIT_S", 0.05)
    network = Network()
    first, second = network.stores
    key = network.keys_of(0)[0]
    with first.loading(key):
        assert load(second, key)
        check(first._memory.get(key), key)
    network.close()


def test_a_lost_machine_is_reported_once_and_its_part_is_loaded_again(caplog):
    network = Network(3)
    keys = network.keys_of(0, 3) + network.keys_of(2, 6)
    assert all(load(network.stores[0], key) for key in keys)
    with caplog.at_level(logging.WARNING):
        network.lose(2)
        for rank in (0, 1):
            network.settle(rank)
        loads = [
            key for key in keys for store in network.stores[:2] if load(store, key)
        ]
    assert loads == keys[3:]
    warned = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert [r.message for r in warned] == [
        "the cache goes on without the machine of rank 2; its samples are loaded again"
    ]
    network.close()


def test_requests_to_a_lost_machine_go_on(network):
    """A claim that waits there, and a value that is on its way."""
    first, second = network.stores
    key = network.keys_of(1)[0]
    loads = []
    with second.loading(key):
        thread = threading.Thread(target=lambda: loads.append(load(first, key)))
        thread.start()
        wait_until(lambda: (0, 1, Kind.CLAIM) in network.sent, "no claim")
        network.lose(1)
        thread.join(DEADLINE_S)
    assert loads == [True]
    assert first._memory.has(key)


def test_a_silent_machine_is_reported_and_done_without(monkeypatch, caplog, network):
    monkeypatch.setattr(server, "ANSWER_LIMIT_S", 0.05)
    first = network.stores[0]
    network.cut.add(1)
    keys = network.keys_of(1, 3)
    with caplog.at_level(logging.WARNING):
        assert all(load(first, key) for key in keys)
    assert [r.message for r in caplog.records] == [
        "the cache server of rank 1 has not answered rank 0 for 0.05 s, and is asked "
        "again later. Until then, samples of its machine may be loaded again"
    ]


def test_a_machine_that_leaves_is_not_reported(network, caplog):
    first, second = network.stores
    key = network.keys_of(1)[0]
    assert load(second, key)
    second.close()
    with caplog.at_level(logging.INFO):
        network.settle(0)
        assert load(first, key)
    assert first._memory.has(key)
    assert caplog.records == []


def test_the_memory_of_the_machine_is_left_when_the_server_has_ended(network):
    first = network.stores[0]
    keys = network.keys_of(0, 2) + network.keys_of(1, 2)
    check_of = [load(first, key) for key in keys[:2]]
    assert check_of == [True, True]
    network.servers[0].stop()
    assert not load(first, keys[0])
    assert load(first, keys[2])
    assert not load(first, keys[2])


def test_a_server_that_does_not_answer_is_reported_once(network, caplog, monkeypatch):
    first = network.stores[0]
    monkeypatch.setattr(
        "bluecomm.data.stores.cluster.cluster_store._FIND_LIMIT_S", 0.05
    )
    blocked = threading.Event()
    network.servers[0].post(lambda: blocked.wait(DEADLINE_S))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert first.get(network.keys_of(1)[0]) is MISSING
            first._no_questions_until = 0.0
    blocked.set()
    [record] = caplog.records
    assert "cache server of this rank has not answered process" in record.message


def test_the_end_of_the_world_leaves_each_machine_its_memory(network, caplog):
    first = network.stores[0]
    key = network.keys_of(1)[0]
    with caplog.at_level(logging.WARNING):
        inbox = network.servers[0]
        inbox.post(lambda: inbox.on_end("its world has ended"))
        network.settle(0)
    assert "goes on with the memory of single machines, because its" in caplog.text
    assert load(first, key)
    assert first._memory.has(key)


def test_requests_are_repeated_in_the_next_world(network):
    first, second = network.stores
    key = network.keys_of(1)[0]
    assert load(second, key)
    network.cut.add(1)
    found = []
    thread = threading.Thread(target=lambda: found.append(first.get(key)))
    thread.start()
    wait_until(lambda: network.servers[0]._asked, "it does not ask")
    network.cut.clear()
    network.post(0, lambda inbox: inbox.on_move())
    thread.join(DEADLINE_S)
    check(found[0], key)


def test_a_newcomer_serves_a_part(network):
    has_joined = threading.Event()
    network.join(1 << 32, has_joined.is_set)
    newcomer = network.stores[2]
    (alone,) = network.keys_of(2, 1)
    assert load(newcomer, alone)
    has_joined.set()
    machines = [server._machines for server in network.servers]
    wait_until(
        lambda: all(len(one.ranks_left) == 3 for one in machines),
        "the newcomer and the others do not meet",
    )
    assert [dict(one.machine_of) for one in machines] == [{0: 0, 1: 1, 2: 1 << 32}] * 3
    theirs, key = network.keys_of(0, 1)[0], network.keys_of(2, 2)[1]
    assert load(newcomer, theirs)
    assert load(network.stores[0], key)
    assert newcomer._memory.has(key)
    assert not newcomer._memory.has(theirs)
    for store in network.stores:
        check(store.get(theirs), theirs)
        check(store.get(key), key)


def test_a_newcomer_takes_the_place_of_a_lost_rank(network):
    """A message from the new process comes before the loss of the old one."""
    first = network.servers[0]
    network.post(0, lambda inbox: inbox.on_message(1, CacheMessage(Kind.JOIN, key=7)))
    network.settle(0)
    assert first._machines.machine_of == {0: 0, 1: 7}
    assert first._machines.ranks_left == [0, 1]
    assert network.sent == [(0, 1, Kind.MEET)]


def test_a_dataset_reads_each_sample_from_the_cluster(network):
    class Opened(ClusterStore):
        def __init__(self, store):
            self.__dict__.update(store.__dict__)

        def open(self, world, length, fingerprint):
            pass

    samples = [value_of(key) for key in range(30)]
    datasets = [CachedDataset(samples, Opened(store)) for store in network.stores]
    for _ in range(2):
        for dataset in datasets:
            for key in range(30):
                check(dataset[key], key)
    assert [(one.misses, one.hits) for one in datasets] == [(30, 30), (0, 60)]
    assert [one.failures for one in datasets] == [0, 0]


def test_values_that_are_too_large_are_refused(network):
    first = network.stores[0]
    key = network.keys_of(1)[0]
    with first.loading(key), pytest.raises(ValueError, match="exceeds 1/64 of the bud"):
        first.put(key, bytes(BUDGET // 64), 1.0)
    assert load(network.stores[1], key)


def test_ranks_without_bluecomm_are_refused():
    store = ClusterStore(BUDGET)
    with pytest.raises(NotInitializedError, match=r"the 2 ranks .* call bluecomm.init"):
        store.open(DataWorld(0, 2), 10, "")
    with pytest.raises(ValueError, match="the budget must be at least"):
        ClusterStore(1)


def test_a_rank_alone_uses_its_memory():
    dataset = CachedDataset([1, 2], "cluster", budget=BUDGET)
    assert [dataset[1] for _ in range(2)] == [2, 2]
    assert (dataset.misses, dataset.hits) == (1, 1)
    dataset.close()


def test_an_event_that_fails_does_not_end_the_server(network, caplog):
    network.servers[0].post(lambda: 1 / 0)
    network.settle(0)
    assert "the cache server of rank 0 failed" in caplog.text
    assert load(network.stores[1], network.keys_of(0)[0])
