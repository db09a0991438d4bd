"""Test the Python side of the network plugin for NCCL."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bluecomm import nccl_net
from bluecomm.nccl_net import check
from bluecomm.nccl_net.__main__ import main
from tests.support.deadlines import DEADLINE_S


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "bluecomm.nccl_net", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, **variables},
    )


def test_the_plugin_is_in_the_package():
    path = nccl_net.plugin_path()
    assert path.name == "libnccl-net-bluecomm.so"
    assert len(str(path)) < 255, "NCCL accepts no longer path"


def test_a_plugin_that_is_not_built_is_an_error(monkeypatch):
    monkeypatch.setattr(nccl_net, "__file__", "/nowhere/bluecomm/nccl_net/__init__.py")
    with pytest.raises(FileNotFoundError, match=r"libnccl-net.* does not exist; build"):
        nccl_net.environment()


@pytest.mark.parametrize("name", ["a,b", "/".join(["x" * 100] * 3)])
def test_a_path_that_nccl_does_not_accept_is_an_error(
    name, tmp_path, monkeypatch, capsys
):
    plugin = tmp_path / name / "libnccl-net-bluecomm.so"
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    monkeypatch.setattr(nccl_net, "__file__", str(plugin.parent / "__init__.py"))
    with pytest.raises(
        RuntimeError, match="NCCL accepts no path that contains a comma"
    ):
        nccl_net.environment()
    assert main(["--env"]) == 1
    assert capsys.readouterr().err.startswith("bluecomm.nccl_net: NCCL accepts no path")


def test_enable_sets_what_nccl_reads(monkeypatch):
    monkeypatch.setenv("NCCL_NET", "Socket")
    monkeypatch.setenv("NCCL_NET_PLUGIN", "none")
    nccl_net.enable()
    nccl_net.enable()  # a second call does no harm
    assert os.environ["NCCL_NET"] == "BlueComm"
    assert os.environ["NCCL_NET_PLUGIN"] == str(nccl_net.plugin_path())


def test_a_command_runs_with_the_variables():
    done = run("--", sys.executable, "-c", "import os; print(os.environ['NCCL_NET'])")
    assert (done.returncode, done.stdout) == (0, "BlueComm\n")


def test_a_missing_command_is_an_error(capsys):
    assert main(["--", "no-such-program"]) == 1
    assert capsys.readouterr().err.startswith("bluecomm.nccl_net: ")


def test_variables_for_a_shell(capsys):
    assert main(["--env"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"export NCCL_NET_PLUGIN={nccl_net.plugin_path()}",
        "export NCCL_NET=BlueComm",
        "export NCCL_NET_PLUGIN_REF_COUNT=1",
    ]


def test_a_new_key_is_printed(capsys):
    assert main(["--new-key"]) == 0
    first = capsys.readouterr().out
    assert re.fullmatch("[0-9a-f]{64}\n", first)
    assert main(["--new-key"]) == 0
    assert capsys.readouterr().out != first


def test_a_shell_takes_a_path_with_spaces(tmp_path, monkeypatch, capsys):
    plugin = tmp_path / "it's a folder" / "libnccl-net-bluecomm.so"
    plugin.parent.mkdir()
    plugin.touch()
    monkeypatch.setattr(nccl_net, "__file__", str(plugin.parent / "__init__.py"))
    assert main(["--env"]) == 0
    script = f'eval "$(cat)"; {shlex.quote(sys.executable)} -c "{PRINT_PLUGIN}"'
    said = subprocess.run(
        ["sh", "-c", script],
        input=capsys.readouterr().out,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert said.stdout == f"{plugin}\n"


PRINT_PLUGIN = "import os; print(os.environ['NCCL_NET_PLUGIN'])"


@pytest.fixture(scope="module")
def fake_nccl(tmp_path_factory):
    """Return a folder with a fake NCCL, whose version is set by FAKE_NCCL."""
    folder = tmp_path_factory.mktemp("nccl")
    source = folder / "nccl.cpp"
    source.write_text(FAKE_NCCL)
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    library = folder / "libnccl.so.2"
    subprocess.run([*compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    return folder


FAKE_NCCL = """
#include <stdlib.h>
extern "C" int ncclGetVersion(int* version) {
  *version = atoi(getenv("FAKE_NCCL"));
  return *version == 0;
}
"""
PLUGIN = Path("/folder/libnccl-net-bluecomm.so")
OLD_NCCL = "; needs NCCL_NET_PLUGIN=bluecomm and /folder in LD_LIBRARY_PATH"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (22809, "2.28.9, loads version 11 of the interface"),
        (22105, "2.21.5, loads version 8 of the interface"),
        (22005, f"2.20.5, loads version 8 of the interface{OLD_NCCL}"),
        (21304, f"2.13.4, loads version 6 of the interface{OLD_NCCL}"),
        (21212, "2.12.12, too old: it loads no version of the interface"),
        (2808, "2.8.8, too old: it loads no version of the interface"),
        (0, "none found"),
    ],
)
def test_how_each_nccl_loads_the_plugin(fake_nccl, monkeypatch, code, said):
    monkeypatch.setattr(check, "_beside_torch", lambda: None)
    monkeypatch.setattr(check, "_DEFAULT_LIBRARY", str(fake_nccl / "libnccl.so.2"))
    monkeypatch.setenv("FAKE_NCCL", str(code))
    assert check.describe_nccl(PLUGIN) == said


def test_the_nccl_beside_torch_comes_first(fake_nccl, tmp_path, monkeypatch):
    beside = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    beside.parent.mkdir(parents=True)
    beside.symlink_to(fake_nccl / "libnccl.so.2")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FAKE_NCCL", "22705")
    assert check.find_nccl() == (2, 27, 5)


def test_a_library_other_than_nccl_is_ignored(monkeypatch):
    monkeypatch.setattr(check, "_beside_torch", lambda: None)
    monkeypatch.setattr(check, "_DEFAULT_LIBRARY", "libc.so.6")
    assert check.find_nccl() is None


def test_check_names_nccl_and_the_interfaces(fake_nccl):
    found = {"LD_LIBRARY_PATH": str(fake_nccl), "FAKE_NCCL": "22005"}
    chosen = {"NCCL_SOCKET_IFNAME": "=lo", "BLUECOMM_NET_STREAMS": "4"}
    done = run("--check", **found, **chosen)
    assert done.returncode == 0, done.stderr
    assert "NCCL       2.20.5, loads version 8" in done.stdout
    assert "card       lo, " in done.stdout
    assert "streams    4" in done.stdout


def test_check_says_what_is_wrong():
    done = run("--check", NCCL_SOCKET_IFNAME="=lo", BLUECOMM_NET_STREAM="4")
    assert done.returncode == 1
    assert "unknown variable BLUECOMM_NET_STREAM; the known ones are" in done.stderr


def test_a_plugin_without_interfaces_says_so():
    script = (
        "from bluecomm import nccl_net\n"
        "from bluecomm.nccl_net.check import find_cards\n"
        "find_cards(nccl_net.plugin_path())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
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
    assert check.interface_of(nccl) == interface
