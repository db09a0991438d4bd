"""Tests how the pre-flight judges the answers of hosts."""

from __future__ import annotations

import io
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest

from bfrun.addresses import Address
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.local import LocalLauncher
from bfrun.plan import HostFacts
from bfrun.preflight.check import print_check, raise_failures
from bfrun.preflight.gpus import nccl_interfaces
from bfrun.preflight.preflight import HostReport, compare_hosts, run_preflight
from bfrun.preflight.probe_session import ProbeSession

CONFIG = LaunchConfig(command=("python", "x.py"), cwd="/job")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(name: str, **differences: Any) -> HostReport:
    answer = {
        "hostname": name,
        "system": "Linux",
        "cpus": [0, 1],
        "numa": [[0], [1]],
        "gpus": ["0"],
        "addresses": [["eth0", "10.0.0.1"]],
        "program": "/usr/bin/python",
        "is_python": True,
        "has_cwd": True,
        "missing": [],
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "bluecomm": "0.1.0",
        "bluecomm_folder": "/b",
        "native": True,
    }
    return HostReport(Host(name), {**answer, **differences})


def problems(**differences: Any) -> list[str]:
    reports = [report("a"), report("b", **differences)]
    compare_hosts(reports, CONFIG)
    assert reports[0].problems == []
    return reports[1].problems


@pytest.mark.parametrize(
    "differences",
    [
        {},
        {"python": "3.11.9"},
        {"torch": "2.13.0+cu126"},
        {"is_python": False, "torch": None, "python": None},
    ],
)
def test_hosts_that_fit_together_have_no_problems(differences):
    assert problems(**differences) == []


@pytest.mark.parametrize(
    ("differences", "match"),
    [
        (
            {"python": "3.10.2"},
            "python is 3.10.2, but on host 'a' it is 3.11.7; install",
        ),
        ({"torch": None}, "torch is not installed, but on host 'a' it is 2.13.0+cpu"),
        ({"torch": "2.4.0"}, "torch is 2.4.0, but on host 'a' it is 2.13.0+cpu"),
        ({"bluecomm": "0.2.0"}, "bluecomm is 0.2.0, but on host 'a' it is 0.1.0"),
        ({"native": False}, "bluecomm in /b has no native extension for Python 3.11.7"),
        ({"system": "Darwin"}, "it runs Darwin, but ranks need Linux"),
        (
            {"has_cwd": False},
            "directory /job does not exist; start bfrun in a directory that",
        ),
        (
            {"missing": ["/a/p.so"]},
            "file /a/p.so, which --enable-net needs, does not exist; inst",
        ),
        ({"program": None}, "program 'python' is not on its PATH; install it there"),
    ],
)
def test_hosts_that_differ_have_a_problem_with_a_remedy(differences, match):
    (problem,) = problems(**differences)
    assert match in problem


@pytest.mark.parametrize("built", [True, False])
def test_a_checkout_as_current_folder_does_not_hide_the_installation(tmp_path, built):
    checkout, installed = tmp_path / "checkout", tmp_path / "site-packages"
    for folder in (checkout, installed):
        (folder / "bluecomm").mkdir(parents=True)
        (folder / "bluecomm" / "__init__.py").touch()
    if built:
        (installed / "bluecomm" / f"_native{EXTENSION_SUFFIXES[0]}").touch()
    (checkout / "examples").mkdir()
    config = LaunchConfig(
        command=(sys.executable, "examples/train.py"),
        cwd=str(checkout),
        environment=(("PYTHONPATH", str(installed)),),
    )
    host = Host("localhost")
    (found,) = run_preflight(config, [host], LocalLauncher(), os.environ)
    if built:
        assert found.problems == []
    else:
        (problem,) = found.problems
        assert f"bluecomm in {installed}/bluecomm has no native extension" in problem


def test_a_host_that_is_silent_about_its_gpus_is_asked_nothing_more(monkeypatch):
    ask, asked = ProbeSession.ask, []

    def silent(self, what, timeout_s, **question):
        asked.append(what)
        if what == "gpus":
            raise LaunchError("host 'localhost': no answer within 60 s")
        return ask(self, what, timeout_s, **question)

    monkeypatch.setattr(ProbeSession, "ask", silent)
    hosts = [Host("localhost"), Host("127.0.0.1")]
    config = LaunchConfig(command=(sys.executable,), cwd=os.getcwd(), check=True)
    found = run_preflight(config, hosts, LocalLauncher(), os.environ)
    assert [one.answer for one in found] == [{}, {}]
    assert found[0].problems == ["no answer within 60 s"]
    assert set(asked) == {"facts", "gpus", "end"}


def test_the_rails_of_the_plugin_are_the_interfaces_that_nccl_takes():
    config = LaunchConfig(
        command=(sys.executable,),
        cwd=os.getcwd(),
        enable_net=True,
        environment=(("NCCL_NET_PLUGIN", "p"), ("NCCL_SOCKET_IFNAME", "")),
    )
    (found,) = run_preflight(config, [Host("localhost")], LocalLauncher(), os.environ)
    names = [interface for interface, _ in found.answer["addresses"]]
    rails = ", ".join(nccl_interfaces(names, None)) or "no interface"
    assert found.nccl_network == f"its first choice from p over {rails}"
    assert not found.gpus


def test_the_rails_are_those_of_the_chosen_interfaces(monkeypatch):
    ask = ProbeSession.ask

    def with_two_interfaces(self, what, timeout_s, **question):
        answer = ask(self, what, timeout_s, **question)
        return {**answer, "addresses": [["eth0", "10.0.0.1"], ["eth1", "10.1.0.1"]]}

    # This machine may have loopback only.
    monkeypatch.setattr(ProbeSession, "ask", with_two_interfaces)
    config = LaunchConfig(
        command=(sys.executable,),
        cwd=os.getcwd(),
        enable_net=True,
        network_interface="10.1.0.1",
        environment=(("NCCL_NET_PLUGIN", "p"),),
    )
    (found,) = run_preflight(config, [Host("localhost")], LocalLauncher(), {})
    assert found.nccl_network == "its first choice from p over eth1"


def test_host_that_was_not_reached_is_not_compared():
    reports = [HostReport(Host("a"), problems=["no answer"]), report("b")]
    compare_hosts(reports, CONFIG)
    assert reports[1].problems == []


def test_facts_for_the_plan():
    addresses = (Address("eth0", "10.0.0.1"),)
    assert report("a").facts == HostFacts((0, 1), ((0,), (1,)), ("0",), addresses)


def test_table_shows_what_is_known_and_each_failure():
    lost = HostReport(Host("b"), problems=["[no] answer; switch it on"])
    text = io.StringIO()
    assert not print_check([report("a"), lost], text)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert lines[1].split() == (
        ["a", "ok", "3.11.7", "2.13.0+cpu", "0.1.0", "2", "1", "10.0.0.1"]
    )
    assert lines[2].split() == ["b", "FAILED"]
    assert lines[3] == "host 'b': [no] answer; switch it on"


@pytest.mark.parametrize("columns", ["20", "80", "500"])
def test_no_word_is_broken(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    name = "a-host-with-a-long-name.of.a.cluster"
    wide = report(name)
    wide.addresses = tuple(f"2001:db8:0:0:0:0:0:{number:x}" for number in range(20))
    text = Screen()
    assert print_check([wide], text)
    (row,) = [line for line in text.getvalue().splitlines() if name in line]
    assert ", ".join(wide.addresses) in row


def test_table_of_hosts_that_passed():
    first = report("a")
    first.addresses = ("10.9.9.9",)
    text = io.StringIO()
    assert print_check([first, report("b", torch=None)], text)
    assert "10.9.9.9" in text.getvalue()
    assert "2 hosts are ready" in text.getvalue()


def test_every_failure_is_in_the_error():
    bad = [HostReport(Host(name), problems=[f"{name} is off"]) for name in "ab"]
    with pytest.raises(LaunchError, match=r"failed:\n  host 'a': a .*\n  host 'b': b"):
        raise_failures([report("c"), *bad])
    raise_failures([report("c")])
