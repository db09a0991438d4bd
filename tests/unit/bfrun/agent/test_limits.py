"""Tests which limits of a machine an agent reports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bfrun.agent import limits
from bfrun.frames.agent_to_driver import HostLimit
from tests.support.stand_in import replace_in


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("own", "top"),
    [("0::/a/b\n", ""), ("3:cpu:/x\n2:pids:/a/b\n0::/other\n", "pids")],
)
def test_limits_of_the_cgroups_above(own, top, tmp_path):
    write(tmp_path / "own", own)
    root = tmp_path / "root"
    write(root / top / "a/b/pids.max", "max\n")
    write(root / top / "a/b/pids.current", "3\n")
    write(root / top / "a/pids.max", "100\n")
    write(root / top / "a/pids.current", "30\n")
    (found,) = limits._cgroup_limits(str(tmp_path / "own"), str(root))
    assert found == HostLimit(
        name=f"pids.max of the cgroup {root / top / 'a'}",
        what="processes and threads",
        limit=100,
        used=30,
        per_rank=1,
    )


def test_a_machine_without_cgroups(tmp_path):
    assert [*limits._cgroup_limits(str(tmp_path / "none"), str(tmp_path))] == []


def test_limits_of_the_kernel(tmp_path):
    write(tmp_path / "threads-max", "500\n")
    write(tmp_path / "load", "0.1 0.2 0.3 1/77 4711\n")
    (found,) = limits._kernel_limits(str(tmp_path), str(tmp_path / "load"))
    assert (found.name, found.limit, found.used) == (
        "kernel.threads-max (sysctl)",
        500,
        77,
    )


def test_the_limit_of_a_user(monkeypatch):
    monkeypatch.setattr(limits, "_is_free_of_user_limit", lambda: False)
    replace_in(monkeypatch, limits, "resource", getrlimit=lambda which: (300, 400))
    (found,) = limits._user_limit()
    assert (found.name, found.limit, found.per_rank) == (
        f"RLIMIT_NPROC (ulimit -u) of user {os.getuid()}",
        300,
        1,
    )
    assert found.used > 0
    replace_in(monkeypatch, limits, "resource", getrlimit=lambda which: (-1, -1))
    assert [*limits._user_limit()] == []


def test_the_agent_raises_its_file_limit_and_a_rank_gets_the_old_one():
    body = (
        "import resource; from bfrun.agent import limits; "
        "print(limits.raise_file_limit(), limits.host_limits()[0].limit)"
    )
    shell = 'ulimit -Sn 200; ulimit -Hn 300; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, "-c", body],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "200 300\n"
