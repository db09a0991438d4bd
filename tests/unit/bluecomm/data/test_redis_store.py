"""The store in a Redis server, with a real server on loopback."""

import os
import pickle
import secrets
import shutil
import subprocess

import pytest
import redis
import torch

from bluecomm.data.cached_dataset import CachedDataset
from bluecomm.data.stores.redis_store import RedisStore
from bluecomm.data.stores.store import MISSING
from bluecomm.data.world import DataWorld
from tests.support.deadlines import wait_until
from tests.support.forks import in_fork
from tests.support.ports import held_port
from tests.unit.bluecomm.data.loaded_once import check_loaded_once

SAMPLE = (torch.arange(1000), {"label": 3}, b"bytes")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Return the address of a server that asks for a password."""
    if shutil.which("redis-server") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no redis-server")
    password = secrets.token_hex(16)
    folder = tmp_path_factory.mktemp("redis")
    settings = folder / "redis.conf"
    with held_port() as port:
        pass
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"requirepass {password}",
        f"dir {folder}",
    ]
    settings.write_text("\n".join([*lines, 'save ""']))
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(["redis-server", settings], stdout=log)
    address = f"redis://:{password}@127.0.0.1:{port}/0"

    def answers():
        assert server.poll() is None, (folder / "log").read_text()
        with redis.Redis.from_url(address) as client:
            try:
                return client.ping()
            except redis.ConnectionError:
                return False

    try:
        wait_until(answers, "the server does not answer")
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def store(url):
    made = opened(url)
    yield made
    made.close()


def opened(url, fingerprint="", **options):
    store = RedisStore(url, prefix=secrets.token_hex(8), **options)
    store.open(DataWorld(0, 1), 100, fingerprint)
    return store


def check(value):
    assert torch.equal(value[0], SAMPLE[0])
    assert value[1:] == SAMPLE[1:]


def test_values_are_kept(store):
    assert store.get(1) is MISSING
    store.put(1, SAMPLE, 1.0)
    store.get(1)[0].zero_()
    check(store.get(1))


def test_forks_and_spawned_processes_share_values(store):
    store.put(1, SAMPLE, 1.0)

    def child():
        check(store.get(1))
        store.put(2, SAMPLE, 1.0)
        with pickle.loads(pickle.dumps(store))._client as client:
            assert client.ping()

    in_fork(child)
    check(store.get(2))


def test_pickled_values_need_permission(url):
    store = opened(url)
    with pytest.raises(TypeError, match="type set must be pickled, and the store does"):
        store.put(1, {1, 2}, 1.0)
    allowed = RedisStore(url, prefix=store._prefix.partition(":")[0], allow_pickle=True)
    allowed.open(DataWorld(0, 1), 100, "")
    allowed.put(1, {1, 2}, 1.0)
    assert allowed.get(1) == {1, 2}
    with pytest.raises(ValueError, match="has a pickled value, and allow_pickle is Fa"):
        store.get(1)
    store.close()
    allowed.close()


def test_datasets_do_not_share_values(url):
    store = opened(url, "a")
    store.put(1, SAMPLE, 1.0)
    other = RedisStore(url, prefix=store._prefix.partition(":")[0])
    other.open(DataWorld(0, 1), 100, "b")
    assert other.get(1) is MISSING
    store.close()
    other.close()


@pytest.mark.parametrize("is_there", [True, False], ids=["password", "port"])
def test_a_server_that_refuses_costs_one_warning(url, is_there):
    """With a wrong password, or at a port that nobody listens at."""
    with held_port() as port:
        wrong = f"redis://127.0.0.1:{port}"
        if is_there:
            wrong = url.replace("redis://:", "redis://:wrong")
        dataset = CachedDataset([SAMPLE] * 3, "redis", url=wrong)
        with pytest.warns(UserWarning, match=r"cannot read the store: Redis: .*Tr"):
            check(dataset[1])
        check(dataset[2])
        assert dataset.failures == 1
        dataset.close()


def test_a_dataset_is_loaded_once_by_all_processes(url, tmp_path):
    check_loaded_once(
        tmp_path, SAMPLE, check, "redis", url=url, prefix=secrets.token_hex(8)
    )


def test_a_value_that_cannot_be_decoded_is_loaded(url):
    prefix = secrets.token_hex(8)
    for allow_pickle in (True, False):
        store = RedisStore(url, prefix=prefix, allow_pickle=allow_pickle)
        dataset = CachedDataset([{1, 2}], store)
        if allow_pickle:
            assert dataset[0] == {1, 2}
        else:
            with pytest.warns(UserWarning, match="cannot decode sample 0: the stor"):
                assert dataset[0] == {1, 2}
        dataset.close()
