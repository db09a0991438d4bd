"""Tests the facts about a machine, and the connections to it."""

from __future__ import annotations

import ast
import ipaddress
import os
import socket
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import bfrun
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.local import LocalLauncher
from bfrun.preflight.probe_session import FILES, ProbeSession, interpreters
from bfrun.probe import (
    interface_addresses,
    machine_facts,
    numa_domains,
    parse_cpu_list,
    visible_gpus,
)
from tests.support.deadlines import DEADLINE_S

HERE = Host("localhost")


def question(*command: str, **environment: str) -> dict[str, object]:
    return {
        "environment": environment,
        "command": command,
        "cwd": os.getcwd(),
        "files": [],
    }


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("\n", []), ("2-2,4-5", [2, 4, 5])],
)
def test_cpu_lists(text, cpus):
    assert parse_cpu_list(text) == cpus


def test_numa_domains_hold_only_usable_cpus(tmp_path):
    for name, text in {"node0": "0-3", "node1": "4-7", "node2": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    (tmp_path / "online").write_text("0-2")
    assert numa_domains([1, 2, 5], str(tmp_path)) == [[1, 2], [5]]
    assert numa_domains([1], str(tmp_path / "absent")) == []


def test_visible_gpus(tmp_path):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    root = str(tmp_path)
    assert visible_gpus({}, root) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1, GPU-ab"}, root) == ["1", "GPU-ab"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, root) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, root + "/absent") == []


def test_addresses_are_neither_loopback_nor_link_local():
    names = {name for _, name in socket.if_nameindex()}
    for interface, text in interface_addresses():
        assert interface in names
        address = ipaddress.ip_address(text)
        assert not address.is_loopback
        assert not address.is_link_local


def test_facts_of_a_python_program():
    facts = machine_facts(question(sys.executable))
    assert facts["program"] == sys.executable
    assert facts["is_python"]
    assert facts["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert facts["cpus"] == sorted(os.sched_getaffinity(0))
    assert facts["has_cwd"]


def make_package(folder: Path, version: str, *, built: bool) -> None:
    """Create a folder ``bluecomm`` as in an installation or a checkout."""
    package = folder / "bluecomm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_version.py").write_text(f'__version__ = "{version}"\n')
    if built:
        (package / f"_native{EXTENSION_SUFFIXES[0]}").touch()


@pytest.mark.parametrize(
    ("arguments", "version"),
    [
        (["examples/train.py", "--lr", "0.1"], "installed"),
        (["-u", "-W", "ignore", "-Xdev", "examples/train.py"], "installed"),
        (["train.py"], "checkout"),
        (["examples/link.py"], "checkout"),
        (["examples"], "installed"),
        (["."], "checkout"),
        (["-m", "examples.train"], "checkout"),
        (["-um", "examples.train"], "checkout"),
        (["-c", "import bluecomm", "examples/train.py"], "checkout"),
        (["-I", "-c", "import bluecomm"], None),
        ([], "checkout"),
        (["-"], "checkout"),
    ],
)
def test_versions_are_those_that_the_command_would_import(tmp_path, arguments, version):
    checkout, installed = tmp_path / "checkout", tmp_path / "site-packages"
    make_package(checkout, "checkout", built=False)
    make_package(installed, "installed", built=True)
    (checkout / "examples").mkdir()
    (checkout / "train.py").touch()
    (checkout / "examples" / "link.py").symlink_to("../train.py")
    asked = question(sys.executable, *arguments, PYTHONPATH=str(installed))
    facts = machine_facts({**asked, "cwd": str(checkout)})
    if version is None:
        # -I ignores the current folder and PYTHONPATH.
        assert facts["bluecomm"] not in ("checkout", "installed")
    else:
        assert facts["bluecomm"] == version
        assert facts["native"] == (version == "installed")


def test_without_a_command_the_current_folder_does_not_count(tmp_path):
    make_package(tmp_path / "checkout", "checkout", built=False)
    make_package(tmp_path / "site-packages", "installed", built=True)
    asked = question(PYTHONPATH=str(tmp_path / "site-packages"))
    asked["environment"]["PATH"] = os.path.dirname(sys.executable)
    facts = machine_facts({**asked, "cwd": str(tmp_path / "checkout")})
    assert facts["is_python"]
    assert (facts["bluecomm"], facts["native"]) == ("installed", True)


def test_files_that_are_missing(tmp_path):
    there, gone = str(tmp_path / "there"), str(tmp_path / "gone")
    (tmp_path / "there").touch()
    facts = machine_facts({**question("sh"), "files": [there, gone]})
    assert facts["missing"] == [gone]


def test_program_is_looked_up_on_the_forwarded_path(tmp_path):
    tool = tmp_path / "my-tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    facts = machine_facts(question("my-tool", PATH=str(tmp_path)))
    assert facts["program"] == str(tool)
    assert not facts["is_python"]
    assert machine_facts(question("my-tool"))["program"] is None


def test_session_asks_and_leaves_nothing():
    session = ProbeSession(LocalLauncher(), HERE, None, DEADLINE_S)
    facts = session.ask("facts", DEADLINE_S, **question("sh"))
    assert facts["hostname"] == socket.gethostname()
    session.close()
    assert session._connection.wait(DEADLINE_S) == 0


def test_session_with_a_missing_interpreter():
    session = ProbeSession(LocalLauncher(), HERE, "/no/such/python", 10)
    with pytest.raises(LaunchError, match=r"no such interpreter: /no/such/python; .*"):
        session.ask("facts", 10, **question("sh"))
    session.close()


def test_session_ignores_what_a_login_script_prints(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho Welcome\necho\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    session = ProbeSession(LocalLauncher(), HERE, str(python), 10)
    assert session.ask("facts", DEADLINE_S, **question("sh"))["system"] == "Linux"
    session.close()


def test_session_has_a_deadline(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 30\n")
    python.chmod(0o755)
    session = ProbeSession(LocalLauncher(), HERE, str(python), 10)
    with pytest.raises(LaunchError, match=r"no answer .* 'facts' within 0\.2 s"):
        session.ask("facts", 0.2, **question("sh"))
    session._connection._process.kill()
    session.close()


def test_given_interpreter_is_the_only_one():
    assert interpreters("/opt/python3") == ["/opt/python3"]
    assert interpreters(None) == [sys.executable, "python3"]


def test_the_program_is_standard_library_only_and_ends_with_its_input():
    sources = [Path(bfrun.__path__[0], name).read_text() for name in FILES]
    modules = set()
    for node in ast.walk(ast.parse("\n".join(sources), feature_version=(3, 8))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    foreign = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert foreign == {"bfrun"}
    session = ProbeSession(LocalLauncher(), HERE, None, DEADLINE_S)
    asked = {"addresses": ["127.0.0.1"], "name": "x", "key": "00"}
    assert session.ask("listen", DEADLINE_S, **asked)["ports"]["127.0.0.1"] > 0
    session._connection._stdin.close()
    assert session._connection.wait(DEADLINE_S) == 0
    session._connection.close()


def test_versions_are_read_without_importing(tmp_path):
    package = tmp_path / "bluecomm"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit(1)\n")
    (package / "_version.py").write_text('__version__ = "9.9"\n')
    asked = {**question(sys.executable), "cwd": str(tmp_path)}
    facts = machine_facts(asked)
    assert (facts["bluecomm"], facts["native"]) == ("9.9", False)
    (package / f"_native{EXTENSION_SUFFIXES[0]}").touch()
    assert machine_facts(asked)["native"] is True


def test_interpreter_that_does_not_work_has_no_versions(tmp_path):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    facts = machine_facts(question(str(python)))
    assert (facts["python"], facts["torch"], facts["bluecomm"]) == (None, None, None)
