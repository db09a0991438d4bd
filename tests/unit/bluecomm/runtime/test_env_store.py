"""The variables that name a store, and the addresses of a rank's own host."""

import socket
import threading

import pytest

from bluecomm.config import Config
from bluecomm.errors import BluecommError, MismatchError
from bluecomm.runtime.rendezvous.env_store import (
    EnvStoreRendezvous,
    StoreVariables,
    has_env_variables,
    is_from_torchrun,
)
from bluecomm.runtime.rendezvous.host import data_addresses, process_start
from tests.support.deadlines import DEADLINE_S

VARIABLES = {
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
OF_ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def test_variables_are_parsed():
    assert is_from_torchrun(VARIABLES)
    told = StoreVariables.from_environment(VARIABLES)
    assert (told.run, told.restart_count) == ("run", 2)
    assert (told.rank, told.size) == (3, 4)
    assert (told.host, told.port) == ("127.0.0.1", 29500)
    assert told.has_store


def test_variables_of_env_are_parsed():
    environ = {name: VARIABLES[name] for name in OF_ENV}
    assert has_env_variables(environ)
    assert not is_from_torchrun(environ)
    told = StoreVariables.from_environment(environ)
    assert (told.rank, told.size) == (3, 4)
    assert not told.has_store
    assert told.facts().source == "env://"
    assert not has_env_variables({**environ, "WORLD_SIZE": "1"})
    for name in OF_ENV:
        others = {key: text for key, text in environ.items() if key != name}
        assert not has_env_variables(others)


def test_a_wrong_variable_of_env_is_named():
    environ = {**{name: VARIABLES[name] for name in OF_ENV}, "WORLD_SIZE": "four"}
    with pytest.raises(BluecommError, match=r"init_method='env://', but WORLD_SIZE is"):
        StoreVariables.from_environment(environ)


@pytest.mark.parametrize(("value", "said"), [(None, "not set"), ("x", "x")])
def test_a_missing_or_wrong_variable_is_named(value, said):
    environ = {**VARIABLES, "RANK": value}
    environ = {name: text for name, text in environ.items() if text is not None}
    with pytest.raises(BluecommError, match=f"torchrun started .* RANK is '{said}'"):
        StoreVariables.from_environment(environ)


def test_a_store_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environ = {**VARIABLES, "MASTER_PORT": str(port)}
    with pytest.raises(BluecommError, match=rf"store at 127.0.0.1:{port} .*reached"):
        EnvStoreRendezvous(Config(start_timeout_s=1), environ)
    assert not list(tmp_path.iterdir())


def test_a_store_that_goes_away_is_named(tmp_path, monkeypatch):
    from torch.distributed import TCPStore

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    environ = {**VARIABLES, **alone, "MASTER_PORT": str(store.port)}
    rendezvous = EnvStoreRendezvous(Config(start_timeout_s=DEADLINE_S), environ)
    assert rendezvous.exchange({"a": 1}, DEADLINE_S) == [{"a": 1}]
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
        told = {"RANK": str(rank), "WORLD_SIZE": str(size)}
        environ = {**VARIABLES, **told, "MASTER_PORT": str(store.port)}
        try:
            EnvStoreRendezvous(Config(start_timeout_s=DEADLINE_S), environ)
        except MismatchError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=meet, args=[rank, 2 + rank]) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
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
