"""Hosts and links are removed when an exception interrupts their making."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import run
from tests.support.deadlines import DEADLINE_S

pytestmark = pytest.mark.cluster

# Has a process of its own, because hosts are named after the process that makes them.
_SCRIPT = """
import os, sys
from pathlib import Path
from tests.support import cluster, paths

print(os.getpid(), flush=True)
if sys.argv[1] == "host":
    start = cluster._start_sshd

    def start_and_leave(made, name, namespace, address):
        sshd = start(made, name, namespace, address)
        cluster._wait_for_sshd(cluster.ClusterHost(name, address, namespace, "", sshd))
        sys.exit(143)

    cluster._start_sshd = start_and_leave
    with cluster.make_cluster(Path(sys.argv[2]), 1):
        pass
else:
    run = paths.run

    def run_and_leave(*words):
        if "add" in words:
            run(*words)
            sys.exit(143)
        return run(*words)

    paths.run = run_and_leave
    with paths.make_paths():
        pass
"""


@pytest.mark.parametrize("what", ["host", "link"])
def test_what_was_being_made_is_removed(what, tmp_path):
    command = [sys.executable, "-c", _SCRIPT, what, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 143, done.stderr
    pid = done.stdout.strip()
    left = run("ip", "-o", "link", "show") + run("ip", "netns", "list")
    names = left.replace(":", " ").split()
    ours = (f"bc{pid}", f"bc{pid}n1", f"bp{pid}a", f"bp{pid}b")
    assert not set(names) & set(ours), left
    # The command line of an SSH server has the path of its key.
    assert not _processes(str(tmp_path / "host_key"))


def _processes(word: str) -> list[str]:
    """Return the command lines in which a word occurs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(
                path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
    return [line for line in found if word in line]
