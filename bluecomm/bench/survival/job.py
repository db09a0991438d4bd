"""Runs a job of ``survive``, causes its fault, and collects its step logs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bluecomm.bench.survival.faults import Fault
from bluecomm.bench.survival.leftovers import MARK, count_left, kill_left
from bluecomm.bench.survival.outcome import JobRecord
from bluecomm.bench.survival.step_log import StepLog, read_logs
from bluecomm.bench.survival.worker import Work

# A stopped rank that the others do not exclude is killed after this time, so that the
# job can end.
_FAILURE_TIMEOUT_S = 10
_START_S, _END_S = 180.0, 120.0
_LOOK_S = 0.002
_BUSY = "while True: pass"


@dataclasses.dataclass(frozen=True)
class JobEffort:
    """How long each job trains.

    Attributes:
        before: Steps before the fault.
        after: Steps after it.
        step_ms: Milliseconds of the emulated forward and backward pass of a step.
        layers: The model, such as ``4x1M``.
    """

    before: int
    after: int
    step_ms: float
    layers: str

    @property
    def steps(self) -> int:
        """Number of steps of each rank."""
        return self.before + self.after


@dataclasses.dataclass(frozen=True)
class Command:
    """How to start the ranks of a job.

    Attributes:
        label: Label of the contender.
        transport: Transport between the ranks.
        launcher: The launcher and its options.
        environ: Additional environment variables.
    """

    label: str
    transport: str
    launcher: Sequence[str]
    environ: Mapping[str, str]


def with_bfrun(label: str, transport: str, ranks: int, *, survives: bool) -> Command:
    """Return how bfrun starts a job on this machine."""
    options = ["-np", str(ranks), "--oversubscribe"]
    if survives:
        options += ["--on-failure", "continue"]
        options += ["--failure-timeout", str(_FAILURE_TIMEOUT_S)]
    launcher = [sys.executable, "-m", "bfrun", *options, sys.executable]
    return Command(label, transport, launcher, {"BLUECOMM_TRANSPORT": transport})


class ObservedJob:
    """A running job, whose processes are marked and whose files are in one folder.

    Args:
        command: How to start it.
        fault: The fault that will hit it.
        effort: How long it trains.
    """

    def __init__(self, command: Command, fault: Fault, effort: JobEffort) -> None:
        self._fault = fault
        self._effort = effort
        self._command = command
        self._mark = uuid.uuid4().hex
        # The sockets of a job need short paths.
        self._folder = Path(tempfile.mkdtemp(prefix="survive-", dir="/tmp"))
        self._logs = self._folder / "logs"
        self._logs.mkdir()
        work = Work(
            folder=str(self._logs),
            label=command.label,
            steps=effort.steps,
            step_ms=effort.step_ms,
            layers=effort.layers,
            late_s=fault.seconds,
        )
        own = {MARK: self._mark, "TMPDIR": str(self._folder), "OMP_NUM_THREADS": "1"}
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [*command.launcher, *work.command()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **own, **command.environ},
                start_new_session=True,
            )

    def close(self) -> None:
        """Kill what is left of the job, and remove its files."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        kill_left(self._mark)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def output(self) -> str:
        """The output of the job so far."""
        return (self._folder / "output").read_text(errors="replace").strip()

    def wait_for_step(self, number: int) -> None:
        """Wait until each rank has done this step.

        Raises:
            RuntimeError: The job ended before that, or took too long.
        """
        deadline = time.monotonic() + _START_S
        while not self._have_done(number):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self._command.label} over {self._command.transport}: the ranks "
                    f"did not get to step {number}: {self.output[-4000:]}"
                )
            time.sleep(_LOOK_S)

    def _have_done(self, number: int) -> bool:
        logs = read_logs(self._logs)
        done = [log for log in logs if log.steps and log.steps[-1].number >= number]
        return len(done) >= self._fault.ranks

    def pids(self) -> dict[int, int]:
        """Return the process of each rank."""
        return {log.rank: log.pid for log in read_logs(self._logs)}

    def wait(self) -> int | None:
        """Return the exit code, or ``None`` if the job did not end in time."""
        limit_s = _END_S + 1e-3 * self._effort.steps * self._effort.step_ms
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None

    def record(self, fault_ns: int, exit_code: int | None) -> JobRecord:
        """Return what is known of the job after its end."""
        gone: set[int] = set()
        for path in self._logs.glob("*.gone"):
            gone.update(json.loads(path.read_text()))
        return JobRecord(
            label=self._command.label,
            transport=self._command.transport,
            steps=self._effort.steps,
            logs=self.logs(),
            fault_ns=fault_ns,
            gone=gone,
            exit_code=exit_code,
            left=count_left(self._mark, self._folder),
        )

    def logs(self) -> list[StepLog]:
        """Return the logs so far."""
        return read_logs(self._logs)


@contextlib.contextmanager
def started(command: Command, fault: Fault, effort: JobEffort) -> Iterator[ObservedJob]:
    """Start a job; kill what is left of it at the end."""
    job = ObservedJob(command, fault, effort)
    try:
        yield job
    finally:
        job.close()


def run_job(
    command: Command,
    fault: Fault,
    effort: JobEffort,
    cut: Callable[[], object] | None = None,
) -> JobRecord:
    """Run a job, cause its fault, and return what it did.

    Args:
        command: How to start it.
        fault: The fault.
        effort: How long it trains.
        cut: Cuts the links of the victims' host, if that is the fault.

    Raises:
        RuntimeError: The job failed before the fault.
    """
    with started(command, fault, effort) as job, contextlib.ExitStack() as stack:
        job.wait_for_step(effort.before)
        fault_ns = time.monotonic_ns()
        if cut is not None:
            cut()
        cause(fault, job.pids(), stack.callback)
        code = job.wait()
        stack.close()
        return job.record(fault_ns, code)


def cause(fault: Fault, pids: Mapping[int, int], at_end: Callable[..., object]) -> None:
    """Cause a fault in the ranks with these processes.

    Args:
        fault: The fault.
        pids: The process of each rank.
        at_end: Takes functions that end the fault after the job.
    """
    victims = [pids[rank] for rank in fault.victims]
    if fault.action == "kill":
        _send(victims, signal.SIGKILL)
    elif fault.action in ("stop", "pause"):
        _send(victims, signal.SIGSTOP)
        if fault.action == "pause":
            time.sleep(fault.seconds)
            _send(victims, signal.SIGCONT)
    elif fault.action == "late":
        _send(victims, signal.SIGUSR1)
    elif fault.action == "load":
        for _ in range(4 * len(os.sched_getaffinity(0))):
            process = subprocess.Popen([sys.executable, "-c", _BUSY])
            at_end(process.wait)
            at_end(process.kill)


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
