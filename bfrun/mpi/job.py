"""Runs mpirun, and reports at the end which rank failed first, and why."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from bfrun.agent.mpi_rank import decode_report
from bfrun.config import LaunchConfig
from bfrun.driver.leftovers import Leftovers
from bfrun.driver.membership import Failure, describe_status
from bfrun.driver.report import Verdict, make_verdict
from bfrun.driver.signals import SignalWatch, stop_myself
from bfrun.errors import LaunchError
from bfrun.launch.archive import source_archive
from bfrun.mpi.command import MpiCommand
from bfrun.mpi.plan import FILES, plan_mpi
from bfrun.nccl_net import describe_nccl_net
from bfrun.output.streams import remark, whole_stdout

_TERM_GRACE_S = 4.0
# MPICH's mpirun ends the other hosts' ranks only if a signal has ended a process. Where
# each rank of a host has exited by itself, the others would wait for ever.
_FAILURE_GRACE_S = 4.0
_SHOWN = "ARCHIVE"


def run_mpi(config: LaunchConfig, environ: Mapping[str, str]) -> int:
    """Start the ranks of ``config`` with mpirun, and return the exit code.

    With ``config.dry_run`` it prints the command and starts nothing.

    Raises:
        LaunchError: There is no MPI, or the settings do not fit it.
    """
    marker = f"--bfrun-{secrets.token_hex(8)}--"
    archive = base64.b64encode(source_archive(FILES)).decode("ascii")
    command = plan_mpi(config, environ, marker, archive)
    shown = shlex.join(command.argv).replace(archive, _SHOWN)
    if config.dry_run:
        with whole_stdout():
            print(shown)
            if (net := describe_nccl_net(command.variables)) is not None:
                print(f"NCCL's network: {net}")
        return 0
    if config.verbose:
        remark(f"bfrun: {shown}")
    verdict = MpiJob(command, marker, environ, config.verbose).run()
    if verdict.report:
        remark(verdict.report)
    return verdict.exit_code


class MpiJob:
    """One run of mpirun, and the reports of its ranks.

    Args:
        command: The mpirun command.
        marker: Text that precedes a report.
        environ: Environment of bfrun.
        verbose: Report leftovers even if there are none.
    """

    def __init__(
        self,
        command: MpiCommand,
        marker: str,
        environ: Mapping[str, str],
        verbose: bool,
    ) -> None:
        self._command = command
        self._marker = marker.encode("ascii")
        self._environ = {**environ, **command.variables, **command.settings}
        self._verbose = verbose
        self._started = time.monotonic()
        self._buffer = b""
        self._failures: list[Failure] = []
        self._tails: dict[int, list[str]] = {}
        self._left: dict[str, int] = {}
        self._ended_by: int | None = None
        self._end_at: float | None = None
        self._kill_at: float | None = None

    def run(self) -> Verdict:
        """Run to the end.

        Raises:
            LaunchError: mpirun cannot be started.
        """
        with SignalWatch() as signals:
            try:
                process = subprocess.Popen(
                    self._command.argv,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(f"{self._command.argv[0]}: {error}") from None
            try:
                self._watch(process, signals)
            finally:
                process.kill()
                process.wait()
                assert process.stderr is not None
                process.stderr.close()
        return self._verdict(process.returncode)

    def _watch(self, process: subprocess.Popen[bytes], signals: SignalWatch) -> None:
        assert process.stderr is not None
        fd = process.stderr.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(signals.fd, select.POLLIN)
        while True:
            ready = [each for each, _ in poll.poll(100)]
            for number in signals.take():
                self._end(process, number)
            now = time.monotonic()
            if self._end_at is not None and now > self._end_at:
                self._terminate(process)
            if self._kill_at is not None and now > self._kill_at:
                return
            if fd not in ready and process.poll() is not None:
                break  # a process that it has left behind holds its standard error
            if fd in ready:
                data = os.read(fd, 65536)
                if not data:
                    break
                self._take(data)
        self._show(self._buffer)
        # It has closed its standard error, so it is about to end, or hangs silently.
        limit = time.monotonic() + _TERM_GRACE_S
        while process.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)

    def _end(self, process: subprocess.Popen[bytes], number: int) -> None:
        if number == SignalWatch.SUSPEND:
            stop_myself()  # the ranks keep running, as with agents
            return
        if self._ended_by is None:
            self._ended_by = number
            self._terminate(process)
        else:
            self._kill_at = 0.0

    def _terminate(self, process: subprocess.Popen[bytes]) -> None:
        self._end_at = None
        if self._kill_at is None:
            self._kill_at = time.monotonic() + _TERM_GRACE_S
            process.send_signal(signal.SIGTERM)

    def _take(self, data: bytes) -> None:
        """Pass on the errors of mpirun and the ranks, except reports."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            before, marker, word = line.partition(self._marker)
            if not marker:
                self._show(line + b"\n")
                continue
            self._show(before)
            try:
                self._note(decode_report(word.strip()))
            except ValueError:
                self._show(b"bfrun: mpirun has split the report of a rank\n")

    def _show(self, data: bytes) -> None:
        # The job continues if stderr is closed or its disk is full.
        with contextlib.suppress(OSError):
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()

    def _note(self, report: Mapping[str, Any]) -> None:
        host, rank, status = report["host"], int(report["rank"]), int(report["status"])
        self._left[host] = self._left.get(host, 0) + int(report["left"])
        # A rank that was signalled is not to blame for its end.
        if status == 0 or report["told"]:
            return
        phrase, cause, exit_code = describe_status(status)
        where = f"rank {rank} on {host}"
        text = report["error"] and f"{where}: {report['error']}"
        text = text or f"{where} (pid {report['pid']}) {phrase}"
        at_s = time.monotonic() - self._started
        self._failures.append(Failure(rank, cause, text, exit_code, at_s))
        self._tails[rank] = report["tail"]
        if len(self._failures) == 1:
            self._end_at = time.monotonic() + _FAILURE_GRACE_S

    def _verdict(self, status: int) -> Verdict:
        name = None if self._ended_by is None else signal.Signals(self._ended_by).name
        verdict = make_verdict(
            self._failures,
            Leftovers(len(self._left), self._left),
            interrupted_by=name,
            interrupted_code=0 if self._ended_by is None else 128 + self._ended_by,
            tails=self._tails,
            log_paths={},
            verbose=self._verbose,
        )
        if verdict.exit_code != 0 or status == 0:
            return verdict
        code = 128 - status if status < 0 else status
        return Verdict(
            code,
            f"bfrun: job failed: mpirun ended with exit code {code} before any rank "
            "reported a failure; its own errors are above",
        )
