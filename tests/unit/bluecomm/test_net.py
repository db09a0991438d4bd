"""The Python side of the network plugin for NCCL."""

import os
import subprocess
import sys

import pytest

from bluecomm import net
from bluecomm.net.__main__ import main
from bluecomm.net.check import interface_of


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "bluecomm.net", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
    )


def test_the_plugin_is_in_the_package():
    path = net.plugin_path()
    assert path.name == "libnccl-net-bluecomm.so"
    assert len(str(path)) < 255, "NCCL takes no longer path"


def test_a_plugin_that_is_not_built_is_an_error(monkeypatch):
    monkeypatch.setattr(net, "__file__", "/nowhere/bluecomm/net/__init__.py")
    with pytest.raises(FileNotFoundError, match=r"libnccl-net.* is not there; build"):
        net.environment()


def test_enable_sets_what_nccl_reads(monkeypatch):
    monkeypatch.setenv("NCCL_NET", "Socket")
    monkeypatch.setenv("NCCL_NET_PLUGIN", "none")
    net.enable()
    assert os.environ["NCCL_NET"] == "BlueComm"
    assert os.environ["NCCL_NET_PLUGIN"] == str(net.plugin_path())


def test_a_command_runs_with_the_variables():
    done = run("--", sys.executable, "-c", "import os; print(os.environ['NCCL_NET'])")
    assert (done.returncode, done.stdout) == (0, "BlueComm\n")


def test_a_command_that_is_not_there_is_an_error(capsys):
    assert main(["--", "no-such-program"]) == 1
    assert capsys.readouterr().err.startswith("bluecomm.net: ")


def test_variables_for_a_shell(capsys):
    assert main(["--env"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"export NCCL_NET_PLUGIN={net.plugin_path()}",
        "export NCCL_NET=BlueComm",
    ]


def test_check_names_the_cards():
    done = run("--check", NCCL_SOCKET_IFNAME="=lo", BLUECOMM_NET_STREAMS="4")
    assert done.returncode == 0, done.stderr
    assert "card       lo, " in done.stdout
    assert "streams    4" in done.stdout


def test_check_says_what_is_wrong():
    done = run("--check", NCCL_SOCKET_IFNAME="=lo", BLUECOMM_NET_STREAM="4")
    assert done.returncode == 1
    assert "unknown variable BLUECOMM_NET_STREAM; there are" in done.stderr


def test_a_plugin_without_cards_says_so():
    script = (
        "from bluecomm import net; from bluecomm.net.check import find_cards\n"
        "find_cards(net.plugin_path())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NCCL_SOCKET_IFNAME": "=nosuchcard"},
    )
    assert "RuntimeError: init: no network interface is up" in done.stderr


@pytest.mark.parametrize(
    ("nccl", "interface"),
    [
        ((2, 12, 9), None),
        ((2, 13, 4), 6),
        ((2, 18, 6), 6),
        ((2, 19, 3), 7),
        ((2, 21, 5), 8),
        ((2, 25, 1), 9),
        ((2, 27, 7), 10),
        ((2, 28, 9), 11),
        ((2, 32, 3), 12),
    ],
)
def test_interface_by_version_of_nccl(nccl, interface):
    assert interface_of(nccl) == interface
