"""``--enable-net``: which variables all ranks get, by whatever launcher."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import bfrun.cli
from bfrun import nccl_net
from bfrun.addresses import Address
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.nccl_net import (
    describe_nccl_net,
    needed_files,
    rails_of_host,
    with_nccl_net,
)

CONFIG = LaunchConfig(command=("x",), enable_net=True)
PLUGIN = Path(__file__).parents[3] / "bluecomm" / "nccl_net" / "libnccl-net-bluecomm.so"


def variables(**settings):
    return dict(with_nccl_net(replace(CONFIG, **settings), {}).environment)


def test_variables_name_the_plugin():
    found = variables()
    assert re.fullmatch("[0-9a-f]{64}", found.pop("BLUECOMM_NET_KEY"))
    assert found == {
        "NCCL_NET_PLUGIN": str(PLUGIN),
        "NCCL_NET": "BlueComm",
        "NCCL_NET_PLUGIN_REF_COUNT": "1",
    }


def test_each_job_has_its_own_key():
    assert variables()["BLUECOMM_NET_KEY"] != variables()["BLUECOMM_NET_KEY"]


def test_what_the_user_sets_wins():
    given = {
        "NCCL_NET": "Socket",
        "BLUECOMM_NET_KEY": "mine",
        "NCCL_NET_PLUGIN_REF_COUNT": "0",
        "MINE": "1",
    }
    expected = {"NCCL_NET_PLUGIN": str(PLUGIN), **given}
    assert variables(environment=tuple(given.items())) == expected


def test_what_the_environment_sets_is_forwarded():
    given = {"BLUECOMM_NET_KEY": "mine", "NCCL_NET_PLUGIN_REF_COUNT": "0"}
    found = dict(with_nccl_net(CONFIG, given).environment)
    assert found == {"NCCL_NET_PLUGIN": str(PLUGIN), "NCCL_NET": "BlueComm"}


def test_nothing_is_set_unasked():
    assert with_nccl_net(replace(CONFIG, enable_net=False), {}).environment == ()


def test_other_hosts_must_have_the_file():
    assert needed_files(with_nccl_net(CONFIG, {})) == [str(PLUGIN)]
    # A name is looked up by NCCL.
    given = (("NCCL_NET_PLUGIN", "bluecomm"),)
    assert needed_files(with_nccl_net(replace(CONFIG, environment=given), {})) == []
    assert needed_files(replace(CONFIG, enable_net=False)) == []


def test_a_plugin_that_is_not_built_is_an_error(tmp_path, monkeypatch):
    spec = ModuleSpec("bluecomm", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(nccl_net, "find_spec", lambda name: spec)
    with pytest.raises(
        LaunchError, match=r"libnccl-net-bluecomm.so does not exist; bui"
    ):
        with_nccl_net(CONFIG, {})


def test_without_bluecomm_it_is_an_error(monkeypatch):
    monkeypatch.setattr(nccl_net, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match="bluecomm is not installed for this interp"):
        with_nccl_net(CONFIG, {})


@pytest.mark.parametrize("name", ["a,b", "/".join(["x" * 100] * 3)])
def test_a_path_that_nccl_cannot_take_is_an_error(name, tmp_path, monkeypatch):
    plugin = tmp_path / name / "nccl_net" / PLUGIN.name
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    spec = ModuleSpec("bluecomm", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / name)]
    monkeypatch.setattr(nccl_net, "find_spec", lambda name: spec)
    with pytest.raises(LaunchError, match="NCCL accepts no path that contains a comma"):
        with_nccl_net(CONFIG, {})


def test_the_network_of_nccl_is_described():
    assert describe_nccl_net({}) is None
    assert describe_nccl_net(variables()) == f"BlueComm from {PLUGIN}"
    assert describe_nccl_net({"NCCL_NET_PLUGIN": "b"}) == "its first choice from b"


ADDRESSES = [
    Address("eth0", "10.0.0.1"),
    Address("eth0", "fd00::1"),
    Address("eth1", "10.1.0.1"),
    Address("docker0", "172.17.0.1"),
]


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (None, None),
        ("eth0", "=eth0"),
        ("eth*", "=eth0,eth1"),
        ("^docker*", "=eth0,eth1"),
        ("10.1.0.0/16", "=eth1"),
        ("ib*", None),
    ],
)
def test_the_rails_are_the_interfaces_that_the_user_chose(pattern, value):
    config = replace(CONFIG, network_interface=pattern)
    expected = {} if value is None else {"NCCL_SOCKET_IFNAME": value}
    assert rails_of_host(config, ADDRESSES) == expected
    assert rails_of_host(replace(config, enable_net=False), ADDRESSES) == {}


@pytest.mark.parametrize("launcher", ["auto", "ssh", "mpi"])
def test_a_dry_run_shows_it(launcher, capsys, tmp_path):
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    mpirun.chmod(0o755)
    where = ["--prefix", str(tmp_path), "-H", "a.invalid:1,b.invalid:1"]
    options = ["--enable-net", "--launcher", launcher, "--dry-run", *where]
    assert bfrun.cli.main([*options, "train.py"]) == 0
    said = capsys.readouterr().out
    assert f"NCCL's network: BlueComm from {PLUGIN}\n" in said
    assert launcher != "mpi" or " -x NCCL_NET -x NCCL_NET_PLUGIN " in said
