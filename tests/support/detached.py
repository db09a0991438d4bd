"""Jobs that go on without bfrun, for tests: other bfruns beside, and a small rank."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.support.deadlines import wait_until
from tests.support.launch import Launched, launched

OPTIONS = ("--on-failure", "continue", "--job-name", "run_1")
# Each rank goes on when the test has made a file.
CLIENT = """
import os, time
from tests.support.rank_client import RankClient
client = RankClient()
client.publish(0)
def await_file(name):
    while not os.path.exists(name):
        time.sleep(0.01)
print("up", flush=True)
"""


@contextlib.contextmanager
def beside(job: Launched, folder: Path, *arguments: str) -> Iterator[Launched]:
    """Run another bfrun that knows the same jobs."""
    folder.mkdir()
    with launched(folder, *arguments, environ=job.shared) as other:
        yield other


def run_beside(job: Launched, folder: Path, *arguments: str) -> Launched:
    """Run another bfrun to its end, and return it."""
    with beside(job, folder, *arguments) as other:
        other.wait()
        return other


def wait_until_up(job: Launched, ranks: int) -> None:
    """Wait until all ranks have met."""
    for rank in range(ranks):
        job.wait_for(rf"^\[{rank}\] up$")


def kill(bfrun: Launched) -> None:
    """Kill a bfrun, but not its job."""
    bfrun.process.kill()
    assert bfrun.wait() == -signal.SIGKILL


def attach_after_death(job: Launched, folder: Path, ranks: int) -> Launched:
    """Kill a bfrun, and let another one attach once its ranks have trained on.

    The ranks read and write the files ``orphaned``, ``alone-RANK`` and ``go``.

    Args:
        job: The first bfrun.
        folder: Folder of the ranks' files.
        ranks: Number of ranks that train on.

    Returns:
        The second bfrun, which has ended.
    """
    kill(job)
    (folder / "orphaned").touch()
    for rank in range(ranks):
        wait_until((folder / f"alone-{rank}").exists, lambda: job.out + job.err)
    with beside(job, folder / "second", "--attach", "run_1") as second:
        second.wait_for("attached to job run_1")
        (folder / "go").touch()
        assert second.wait() == 0, second.out + second.err
    return second


def lines_of(bfrun: Launched) -> list[str]:
    """Return its lines of output, without those that it may show once more."""
    return sorted(line for line in bfrun.out.splitlines() if "up" not in line)
