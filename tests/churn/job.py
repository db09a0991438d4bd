"""A churn job on namespace hosts: causes faults, and waits until all ranks are back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.churn.check import problems
from tests.churn.schedule import HOSTS, RANKS, SLOTS, Fault
from tests.churn.step_log import Life, LogFolder
from tests.churn.worker import Work
from tests.support.cluster import Cluster, ClusterHost
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.launch import Launched, launched

# Steps that all ranks do together before the job counts as complete. An excluded rank
# that continues does fewer.
_STEPS = 20
# A newcomer imports torch anew.
_BACK_S = 4 * DEADLINE_S
# Longer than a cut lasts on the slowest machine, so that its host is not lost.
_LINK_TIMEOUT_S = 120
_OPTIONS = (
    *("--on-failure", "continue", "--respawn", "-np", str(RANKS)),
    *("--link-timeout", str(_LINK_TIMEOUT_S), "-x", "OMP_NUM_THREADS=1"),
)


@dataclasses.dataclass(frozen=True)
class Hit:
    """A fault that has happened.

    Attributes:
        fault: The fault.
        pids: The processes that it has hit.
        began_ns: When it began, on the clock of ``time.monotonic_ns``.
        ended_ns: When it ended.
    """

    fault: Fault
    pids: tuple[int, ...]
    began_ns: int
    ended_ns: int


class ChurnJob:
    """A running job of 8 ranks on 4 hosts.

    Args:
        job: Its bfrun.
        cluster: Its hosts.
        logs: Its logs.

    Attributes:
        hits: The faults so far.
    """

    def __init__(self, job: Launched, cluster: Cluster, logs: LogFolder) -> None:
        self.job = job
        self.cluster = cluster
        self.logs = logs
        self.hits: list[Hit] = []

    def is_complete(self, since_ns: int) -> bool:
        """Return whether all ranks have trained together for some steps since then."""
        latest = self.logs.latest()
        return len(latest) == RANKS and all(
            _has_trained(life, since_ns) for life in latest.values()
        )

    def await_all(self, since_ns: int) -> None:
        """Wait until all ranks have trained together for some steps since then."""
        self._await(lambda: self.is_complete(since_ns), "not all ranks are back")

    def await_step(self, number: int) -> None:
        """Wait until all ranks have done a step."""

        def is_done() -> bool:
            latest = self.logs.latest().values()
            # A rank that has just come back has done no step.
            return all(
                life.steps and life.steps[-1].number >= number for life in latest
            )

        self._await(is_done, f"not all ranks have done step {number}")

    def hit(self, fault: Fault, *, until_excluded: bool) -> None:
        """Cause a fault, and end it.

        Args:
            fault: The fault.
            until_excluded: Whether long stops and cuts last until the other ranks have
                excluded the victims, instead of for a certain time.
        """
        latest = self.logs.latest()
        pids = tuple(latest[rank].pid for rank in fault.victims)
        began_ns = time.monotonic_ns()
        lost_before = [self._losses(rank) for rank in fault.victims]

        def is_noticed() -> bool:
            now = [self._losses(rank) for rank in fault.victims]
            return all(a < b for a, b in zip(lost_before, now, strict=True))

        def last() -> None:
            if until_excluded and not fault.is_short:
                self._await(is_noticed, f"{fault} has not been noticed")
            else:
                time.sleep(fault.lasts_s)

        with _caused(fault, pids, self.cluster.hosts[fault.host]):
            last()
        self.hits.append(Hit(fault, pids, began_ns, time.monotonic_ns()))

    def end(self) -> list[dict[str, object]]:
        """End the training on all ranks, and return what they have printed, by rank."""
        self.job.signal(signal.SIGUSR1)
        code = self.job.wait(_BACK_S)
        assert code == 0, self.job.out + self.job.err
        results = [json.loads(text) for text in re.findall(r"\{.*\}", self.job.out)]
        return sorted(results, key=lambda one: one["rank"])

    def present(self) -> list[int]:
        """Return the ranks that train, or are stopped."""
        latest = self.logs.latest().values()
        return [life.rank for life in latest if life.steps and _runs(life.pid)]

    def ended_by(self, hit: Hit) -> list[int]:
        """Return the processes that have ended because of a fault."""
        alive = {life.pid for life in self.logs.latest().values()}
        later = {
            pid
            for other in self.hits
            if other.began_ns > hit.began_ns and not other.fault.is_short
            for pid in other.pids
        }
        return [pid for pid in hit.pids if pid not in alive | later]

    def problems(self) -> list[str]:
        """Return what is wrong with the steps, but not of ranks that were excluded."""
        ends = {}
        latest = self.logs.latest()
        for life in self.logs.lives():
            if life is not latest[life.rank] and len(life.steps) > _STEPS:
                # Perhaps it was excluded although nothing had happened to it, because
                # its host was too busy.
                ends[life.pid] = life.steps[-_STEPS].end_ns
        ends |= {pid: hit.began_ns for hit in self.hits for pid in self.ended_by(hit)}
        return problems(self.logs.lives(), ends)

    @property
    def lost(self) -> list[int]:
        """The ranks that have been lost, in order."""
        # A join is told in nearly the same words.
        pattern = r"^bfrun: rank (\d+) on (?!.* has joined;).*; the job goes on with"
        found = re.findall(pattern, self.job.err, re.MULTILINE)
        return list(map(int, found))

    def _losses(self, rank: int) -> int:
        return self.lost.count(rank)

    def _await(self, done: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            assert self.job.process.poll() is None, self._told("bfrun has ended")
            assert "so it stays empty" not in self.job.err, self._told(what)
            return done()

        wait_until(look, lambda: self._told(what), _BACK_S)

    def _told(self, what: str) -> str:
        done = {
            f"{life.rank} ({life.pid})": life.steps[-1][:4] if life.steps else None
            for life in self.logs.lives()
        }
        return f"{self.job.out}\n{self.job.err}\n{done}\n{self.hits}\n{what}"


def _has_trained(life: Life, since_ns: int) -> bool:
    steps = life.steps[-_STEPS:]
    return len(steps) == _STEPS and all(
        step.end_ns > since_ns and step.members == RANKS for step in steps
    )


def _runs(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    with contextlib.suppress(OSError):
        return b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@contextlib.contextmanager
def _caused(fault: Fault, pids: Sequence[int], host: ClusterHost) -> Iterator[None]:
    """Cause a fault, and end it at the end."""
    if "cut" in fault.kind:
        cut, mend = host.cut_link, host.restore_link
        if fault.is_short:
            cut, mend = host.stop_forwarding, host.forward_again
        cut()
        try:
            yield
        finally:
            mend()
        return
    numbers = {"kill": signal.SIGKILL, "leave": signal.SIGUSR1}
    os.kill(pids[0], numbers.get(fault.kind, signal.SIGSTOP))
    yield
    if "stop" in fault.kind:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGCONT)


@contextlib.contextmanager
def running(
    folder: Path, cluster: Cluster, work: Work, options: Sequence[str] = ()
) -> Iterator[ChurnJob]:
    """Start a job; kill what is left of it at the end."""
    hosts = ",".join(f"{host.name}:{SLOTS}" for host in cluster.hosts[:HOSTS])
    where = ["--ssh-config", str(cluster.ssh_config), "-H", hosts, *options]
    with launched(folder, *_OPTIONS, *where, *work.command()) as job:
        logs = LogFolder(Path(work.folder), len(work.models))
        yield ChurnJob(job, cluster, logs)
