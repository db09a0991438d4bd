"""Runs a job of ``survive``, causes its fault, and collects its step logs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
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
from bluecomm.bench.survival.step_log import (
    Beginning,
    StepLog,
    read_beginning,
    read_logs,
)
from bluecomm.bench.survival.worker import Work

# A stopped rank that the others do not exclude is killed after this time, so that the
# job can end.
_FAILURE_TIMEOUT_S = 10
JOB_NAME = "survive"
_START_S = 180.0
# A job that has made no step for so long is given up.
_SILENT_S = 120.0
# A kill comes soon after a step; a newcomer takes seconds.
_LOOK_S, _BACK_LOOK_S = 0.002, 0.1
_BUSY = "while True: pass"
_BFRUN = (sys.executable, "-m", "bfrun")
_LINE = re.compile(r"^\[(\d+)\] (step \d+)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class JobEffort:
    """How long each job trains.

    Attributes:
        before: Steps before the fault.
        after: Steps after it; 0 if the job trains until ``ObservedJob.end``.
        step_ms: Milliseconds of the emulated forward and backward pass of a step.
        layers: The model, such as ``4x1M``.
        save_every: Steps from one checkpoint of DDP to the next; 0 for none.
        seconds: With ``after=0``, seconds after the fault until ``run_job`` ends the
            job; 0 for a job that newcomers join and its caller ends.
    """

    before: int
    after: int
    step_ms: float
    layers: str
    save_every: int = 0
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Number of steps of each rank; 0 if the job trains until it is ended."""
        return self.before + self.after if self.after else 0

    @property
    def admits_newcomers(self) -> bool:
        """Whether lost ranks that are back join the job."""
        return not (self.steps or self.seconds)

    def lasting(self, seconds: float) -> JobEffort:
        """Return the effort with so many seconds after the fault, by the clock."""
        return dataclasses.replace(self, after=0, seconds=seconds)

    def with_steps_for(self, seconds: float) -> JobEffort:
        """Return the effort with steps after the fault that take so many seconds.

        It has a number of steps, and lasts longer where steps exceed ``step_ms``.
        """
        steps = round(seconds / (1e-3 * self.step_ms))
        return dataclasses.replace(self, after=max(1, steps))


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


def with_bfrun(
    label: str,
    transport: str,
    ranks: int,
    *,
    survives: bool = True,
    options: Sequence[str] = (),
) -> Command:
    """Return how bfrun starts a job on this machine.

    Args:
        label: Label of the contender.
        transport: Transport between the ranks.
        ranks: Number of ranks.
        survives: Whether the other ranks go on when one is lost.
        options: More options of bfrun.
    """
    own = ["-np", str(ranks), "--oversubscribe"]
    if survives:
        own += ["--on-failure", "continue"]
        own += ["--failure-timeout", str(_FAILURE_TIMEOUT_S)]
    launcher = [*_BFRUN, *own, *options, sys.executable]
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
            prints=fault.action == "detach",
            save_every=effort.save_every,
            admits_newcomers=effort.admits_newcomers,
        )
        own = {MARK: self._mark, "TMPDIR": str(self._folder), "OMP_NUM_THREADS": "1"}
        self._outputs: list[Path] = []
        self._environ = {**os.environ, **own, **command.environ}
        try:
            self._process = self._launch([*command.launcher, *work.command()])
        except BaseException:  # SIGTERM may come when the process has been started
            self._remove()
            raise

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # One file for each bfrun, because one that was killed may leave half a line.
        path = self._folder / f"output-{len(self._outputs)}"
        self._outputs.append(path)
        with path.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environ,
                start_new_session=True,
            )

    def close(self) -> None:
        """Kill what is left of the job, and remove its files."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._remove()

    def _remove(self) -> None:
        kill_left(self._mark)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def output(self) -> str:
        """The output of the job so far."""
        texts = [path.read_text(errors="replace") for path in self._outputs]
        return "\n".join(texts).strip()

    def wait_for_step(self, number: int) -> None:
        """Wait until each rank has done this step.

        Raises:
            RuntimeError: The job ended before that, or took too long.
        """
        what = f"the ranks did not get to step {number}"
        self._wait_until(lambda: self._have_done(number), what, _LOOK_S)

    def _wait_until(
        self, is_done: Callable[[], bool], what: str, look_s: float
    ) -> None:
        deadline = time.monotonic() + _START_S
        while not is_done():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self._command.label} over {self._command.transport}: {what}: "
                    f"{self.output[-4000:]}"
                )
            time.sleep(look_s)

    def wait_for_training(self, rank: int, since_ns: int, steps: int = 2) -> StepLog:
        """Wait until a rank has done steps since a time; return its last log.

        Raises:
            RuntimeError: The job ended before that, or took too long.
        """
        found: list[StepLog] = []

        def is_done() -> bool:
            logs = [log for log in read_logs(self._logs) if log.rank == rank]
            found[:] = logs[-1:]
            ends = [step.end_ns for log in found for step in log.steps]
            return sum(end_ns > since_ns for end_ns in ends) >= steps

        self._wait_until(is_done, f"rank {rank} did not train again", _BACK_LOOK_S)
        return found[0]

    def _have_done(self, number: int) -> bool:
        logs = read_logs(self._logs)
        done = [log for log in logs if log.steps and log.steps[-1].number >= number]
        return len(done) >= self._fault.ranks

    def pids(self) -> dict[int, int]:
        """Return the last process of each rank."""
        return {log.rank: log.pid for log in read_logs(self._logs)}

    def wait(self) -> int | None:
        """Return the exit code, or ``None`` if the job has made no step for long."""
        return self._wait(notice_s=math.inf)

    def end(self, after_s: float = 0.0) -> int | None:
        """End a job without a number of steps, and return what ``wait`` does.

        The launcher gets notice, so all ranks stop at the same step.

        Args:
            after_s: Seconds until the notice.
        """
        return self._wait(notice_s=after_s)

    def _wait(self, notice_s: float) -> int | None:
        size, until = -1, 0.0
        due = time.monotonic() + notice_s
        while True:
            if time.monotonic() >= due:
                self._process.send_signal(signal.SIGUSR1)
                due = math.inf
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(1.0)
            before, size = (
                size,
                sum(path.stat().st_size for path in self._logs.glob("*.steps")),
            )
            now = time.monotonic()
            if size != before:
                until = now + _SILENT_S
            elif now > until:
                return None

    def detach(self, seconds: float) -> None:
        """Kill bfrun, and let another one attach to the job after some time."""
        self._process.kill()
        self._process.wait()
        time.sleep(seconds)
        self._process = self._launch([*_BFRUN, "--attach", JOB_NAME])

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
            lines_lost=self._lines_lost(),
        )

    def _lines_lost(self) -> int:
        """Return how many lines of the ranks nobody has seen."""
        if self._fault.action != "detach":
            return 0
        # A bfrun that attaches may show the last lines once more.
        seen = set(_LINE.findall(self.output))
        return self._fault.ranks * (self._effort.steps + 1) - len(seen)

    def logs(self) -> list[StepLog]:
        """Return the logs so far."""
        return read_logs(self._logs)

    def beginning(self, log: StepLog) -> Beginning:
        """Return when the process of a log has begun."""
        return read_beginning(self._logs, log)


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
    disturb: Callable[[], object] | None = None,
) -> JobRecord:
    """Run a job, cause its fault, and return what it did.

    Args:
        command: How to start it.
        fault: The fault.
        effort: How long it trains.
        disturb: Disturbs the network between hosts, if that is the fault.

    Raises:
        RuntimeError: The job failed before the fault.
    """
    with started(command, fault, effort) as job, contextlib.ExitStack() as stack:
        job.wait_for_step(effort.before)
        fault_ns = time.monotonic_ns()
        if disturb is not None:
            disturb()
        if fault.action == "detach":
            job.detach(fault.seconds)
        cause(fault, job.pids(), stack.callback)
        code = job.end(effort.seconds) if effort.seconds else job.wait()
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
