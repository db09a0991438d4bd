"""How a process group joins the world, in one process."""

import datetime
import gc
import os
import types

import pytest
import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

import bluecomm as bf
from bluecomm.runtime import current_process
from bluecomm.torch_backend import store_rendezvous
from bluecomm.torch_backend.store_rendezvous import share_world

HASH_STORE = dist.HashStore()


@pytest.fixture(autouse=True)
def no_world(monkeypatch, tmp_path):
    """Begin and end without a world, and check that no folder is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    current_process().leave()
    yield
    current_process().leave()
    store_rendezvous._shares.clear()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def options(store=HASH_STORE, rank=0, size=1, *, timeout_s=None, members=()):
    """Return what torch passes to the creator of a backend."""
    timeout = default_pg_timeout
    if timeout_s is not None:
        timeout = datetime.timedelta(seconds=timeout_s)
    return types.SimpleNamespace(
        store=dist.PrefixStore("0/", dist.PrefixStore("cpu/", store)),
        group_rank=rank,
        group_size=size,
        timeout=timeout,
        global_ranks_in_group=list(members),
    )


def open_sockets():
    """Return the number of sockets that this process has open."""
    links = [
        os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")
    ]
    # The descriptor of the listing itself has ended.
    names = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sum(name.startswith("socket:") for name in names)


def test_the_default_group_ends_the_world_that_it_made():
    share = share_world(options())
    assert bf.size() == 1
    share.release()
    assert not bf.is_initialized()
    assert current_process().rendezvous is None
    share.release()  # once is enough


def test_the_end_of_the_world_closes_its_store():
    gc.collect()
    gc.disable()
    try:
        before = open_sockets()
        share = share_world(options(dist.TCPStore("localhost", 0, 1, is_master=True)))
        share.release()
        del share
        assert open_sockets() == before
    finally:
        gc.enable()


def test_a_world_that_init_has_taken_outlives_the_group():
    share = share_world(options())
    bf.init()
    assert bf.rank() == 0
    share.release()
    assert bf.is_initialized()


def test_a_group_finds_the_world_of_init():
    bf.init()
    world = current_process().communicator.world
    share = share_world(options())
    assert share.communicator.world is world
    share.release()
    assert not world.is_closed


def test_the_default_group_takes_other_groups_with_it(monkeypatch):
    first = share_world(options())
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    second = share_world(options(members=[0]))
    assert second.communicator is first.communicator
    second.release()
    assert bf.is_initialized()
    second = share_world(options(members=[0]))
    first.release()
    assert not bf.is_initialized()
    second.release()


def test_a_share_does_not_end_a_later_world():
    share = share_world(options())
    bf.shutdown()
    again = share_world(options())
    share.release()
    assert bf.is_initialized()
    again.release()


def test_a_group_of_some_ranks_needs_a_world(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    with pytest.raises(
        bf.BluecommError, match=r"rank 1: .*\[1, 2\] needs the world of all 4 .*'gloo'"
    ):
        share_world(options(rank=0, size=2, members=[1, 2]))


def test_a_world_of_other_ranks_is_named():
    bf.init()
    with pytest.raises(
        bf.BluecommError,
        match=r"rank 1 of 3 for torch, but rank 0 of 1 in bluecomm's world \(no launch",
    ):
        share_world(options(rank=1, size=3))
    assert bf.is_initialized()


def test_a_store_of_one_process_is_refused():
    with pytest.raises(bf.BluecommError, match=r"rank 1: other processes .* HashStore"):
        share_world(options(rank=1, size=2))
    assert current_process().rendezvous is None


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_do_not_come_are_named_within_the_timeout_of_the_group(
    rank, tmp_path
):
    store = dist.FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(bf.CommunicationTimeout) as raised:
        share_world(options(store, rank, 2, timeout_s=0.2))
    assert raised.value.peers == (1 - rank,)
    said = f"rank {1 - rank} did not call torch.distributed.init_process_group within"
    assert f"{said} 0.2 s" in str(raised.value)
    # The next attempt meets in another store.
    assert current_process().rendezvous is None
    share_world(options()).release()


def test_the_timeout_of_torch_itself_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("BLUECOMM_START_TIMEOUT_S", "0.3")
    store = dist.FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(bf.CommunicationTimeout, match=r"within 0\.3 s"):
        share_world(options(store, 0, 2))


def test_a_store_that_has_ended_is_named():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = server.port
    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    del server
    with pytest.raises(
        bf.BluecommError, match=rf"rank 1: torch's TCPStore at 127.0.0.1:{port} cannot"
    ):
        share_world(options(client, 1, 2))


def test_facts_about_stores(tmp_path):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    facts = store_rendezvous._facts(dist.PrefixStore("a", server), 0, 2)
    assert (facts.head, facts.may_run_here) == ("127.0.0.1", True)
    assert facts.shared_folder is None
    file = dist.FileStore(str(tmp_path / "store"), 2)
    facts = store_rendezvous._facts(dist.PrefixStore("a", file), 0, 2)
    assert facts.shared_folder == str(tmp_path)
    assert (facts.head, facts.may_run_here) == (None, False)


def test_ranks_of_bfrun_are_checked_before_the_agent_is_asked(monkeypatch):
    monkeypatch.setenv("BLUECOMM_AGENT_SOCKET", "/nonexistent")
    monkeypatch.setenv("BLUECOMM_RANK", "0")
    monkeypatch.setenv("BLUECOMM_SIZE", "1")
    with pytest.raises(
        bf.BluecommError, match=r"rank 2 of 4 .*rank 0 of 1 .*\(bfrun\)"
    ):
        share_world(options(rank=2, size=4))


def said_by_a_fork(body):
    """Run a function in a fork of this process, and return the text of its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            body()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(writer), os.fdopen(reader) as file:
        return os.read(file.fileno(), 1000).decode()


def test_a_fork_of_a_rank_has_no_world():
    share = share_world(options())
    said = said_by_a_fork(lambda: share_world(options()))
    assert said.startswith("ShutdownError: ")
    assert "is a fork of rank 0" in said
    # The rank still has the share that the fork gives back.
    assert said_by_a_fork(share.release) == "nothing"
    assert bf.allreduce(torch.ones(1)).item() == 1.0
    share.release()


def test_a_process_group_serves_its_process_only():
    dist.init_process_group("bluecomm", store=dist.HashStore(), rank=0, world_size=1)
    try:
        said = said_by_a_fork(lambda: dist.all_reduce(torch.ones(1)))
        assert said.startswith("ShutdownError: ")
        assert "is a fork of rank 0" in said
        assert said_by_a_fork(dist.destroy_process_group) == "nothing"
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 1.0
    finally:
        dist.destroy_process_group()
