"""The variables of torchrun, and the addresses of a rank's own host."""

import socket
import threading

import pytest

from bluecomm.config import Config
from bluecomm.errors import BluecommError, MismatchError
from bluecomm.runtime.rendezvous.host import data_addresses, process_start
from bluecomm.runtime.rendezvous.torchrun import TorchrunRendezvous, TorchrunVariables

VARIABLES = {
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_variables_are_parsed():
    told = TorchrunVariables.from_environment(VARIABLES)
    assert (told.run_id, told.restart_count) == ("run", 2)
    assert (told.rank, told.size, told.local_rank, told.local_size) == (3, 4, 1, 2)
    assert (told.machine_rank, told.machine_size) == (1, 2)
    assert (told.store_host, told.store_port) == ("127.0.0.1", 29500)
    assert told.has_store


@pytest.mark.parametrize(("value", "said"), [(None, "not set"), ("x", "x")])
def test_a_missing_or_wrong_variable_is_named(value, said):
    environ = {**VARIABLES, "RANK": value}
    environ = {name: text for name, text in environ.items() if text is not None}
    with pytest.raises(BluecommError, match=f"torchrun started .* RANK is '{said}'"):
        TorchrunVariables.from_environment(environ)


def test_a_store_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environ = {**VARIABLES, "MASTER_PORT": str(port)}
    with pytest.raises(BluecommError, match=rf"store at 127.0.0.1:{port} .*reached"):
        TorchrunRendezvous(Config(start_timeout_s=1), environ)
    assert not list(tmp_path.iterdir())


def test_a_store_that_goes_away_is_named(tmp_path, monkeypatch):
    from torch.distributed import TCPStore

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environ = {**VARIABLES, **alone, "MASTER_PORT": str(store.port)}
    rendezvous = TorchrunRendezvous(Config(start_timeout_s=5), environ)
    assert rendezvous.exchange({"a": 1}, 5.0) == [{"a": 1}]
    del store
    with pytest.raises(BluecommError, match=r"rank 0: torchrun's store at 127"):
        rendezvous.exchange({"a": 2}, 5.0)
    rendezvous.close()
    assert not list(tmp_path.iterdir())


def test_ranks_with_other_world_sizes_are_named(tmp_path, monkeypatch):
    from torch.distributed import TCPStore

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    errors = {}

    def meet(rank, size):
        told = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": "2"}
        environ = {**VARIABLES, **told, "MASTER_PORT": str(store.port)}
        try:
            TorchrunRendezvous(Config(start_timeout_s=30), environ)
        except MismatchError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=meet, args=[rank, 2 + rank]) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert "world size of rank 1 differs (expected 2, got 3)" in errors[0]
    assert "world size of rank 0 differs (expected 3, got 2)" in errors[1]


def test_the_address_of_the_route_comes_first(monkeypatch):
    monkeypatch.setattr(
        "bluecomm.runtime.rendezvous.host.interface_addresses",
        lambda: [["eth0", "10.0.0.1"], ["lo9", "127.0.0.1"], ["eth1", "10.1.0.1"]],
    )
    assert data_addresses(None, "127.0.0.9")[0] == "127.0.0.1"
    assert data_addresses("eth*", "127.0.0.9") == ("10.0.0.1", "10.1.0.1")
    assert data_addresses("10.1.0.0/16", "no.such.host.invalid") == ("10.1.0.1",)
    with pytest.raises(BluecommError, match=r"NETWORK_INTERFACE 'ib0' .*eth0"):
        data_addresses("ib0", "127.0.0.9")
    with pytest.raises(BluecommError, match="is not a network"):
        data_addresses("10.0.0.0/77", "127.0.0.9")


def test_a_process_that_ended_has_no_start():
    assert process_start(1) is not None
    assert process_start(2**22 + 1) is None
