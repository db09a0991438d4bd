"""Tests the controller's addresses, and its end if another process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.notebook import controller
from bfrun.notebook.cli import main
from bfrun.notebook.clients import client_of
from bfrun.notebook.controller import own_address
from bfrun.notebook.profile import Profile
from bfrun.plan import HostPlan
from tests.support.deadlines import DEADLINE_S, hear, wait_until
from tests.support.launch import ROOT


def test_engines_here_use_the_loopback() -> None:
    assert own_address(HostPlan(0, Host("localhost"), ())) == "127.0.0.1"


def test_engines_elsewhere_use_the_route_to_their_host() -> None:
    host = HostPlan(0, Host("h"), (), addresses=("fe80::1", "127.0.0.9"))
    assert own_address(host) == "127.0.0.1"


def test_a_host_without_ipv4_is_refused() -> None:
    host = HostPlan(0, Host("h"), (), addresses=("fe80::1",))
    with pytest.raises(LaunchError, match="host 'h' has no IPv4 address among fe80::1"):
        own_address(host)


@pytest.mark.parametrize(
    ("addresses", "engines", "clients"),
    [
        (["127.0.0.1"], "127.0.0.1", "127.0.0.1"),
        (["10.0.0.1", "10.0.0.1"], "10.0.0.1", "127.0.0.1"),
        (["10.0.0.1", "10.1.0.1"], "0.0.0.0", "0.0.0.0"),
    ],
)
def test_it_listens_where_engines_come_from(
    tmp_path: Path, monkeypatch, addresses, engines, clients
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    command = controller._command(Profile("p"), addresses)
    assert f"--IPController.engine_ip={engines}" in command
    assert f"--IPController.client_ip={clients}" in command
    assert "--IPController.enable_curve=True" in command


def test_no_client_without_a_job(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with (
        pytest.raises(LaunchError, match="no job of profile 'p' is running; start one"),
        client_of(Profile("p")),
    ):
        pass
    assert main(["interrupt"]) == 1
    assert "no job of profile 'bluefog' is running" in capsys.readouterr().err
    assert main(["stop"]) == 1
    assert main(["start", "-np", "1", "-H", "a:b:c"]) == 2


# The driver of the tests below: starts a guard over a shell with a child.
_DRIVER = """
import signal, subprocess, sys
from bfrun.notebook.controller import _GUARD
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
guard = subprocess.Popen(
    [sys.executable, "-c", _GUARD, "sh", "-c", sys.argv[1]], stdin=subprocess.PIPE
)
print(guard.pid, flush=True)
signal.pause()
"""


def start_driver(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _DRIVER, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_driver_is_told_that_the_controller_has_ended() -> None:
    with start_driver("exit 3") as driver:
        _, said = driver.communicate(timeout=DEADLINE_S)
    assert driver.returncode == 7
    assert "the controller has ended (exit 3); ending the engines" in said


def test_nothing_of_the_controller_outlives_the_driver(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = f"setsid sleep 1000 & echo $! >{child}.new; mv {child}.new {child}; wait"
    with start_driver(script) as driver:
        hear(tmp_path, "child")
        assert driver.stdout is not None
        guard = int(driver.stdout.readline())
        driver.send_signal(signal.SIGKILL)
        for pid in (guard, int(child.read_text())):
            wait_until(lambda pid=pid: _is_gone(pid), f"{pid} still runs")


def _is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
