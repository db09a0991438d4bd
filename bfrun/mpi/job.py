"""Runs mpirun, and says at the end which rank failed first, and why."""

from __future__ import annotations

import base64
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bfrun.addresses import Address, choose_interfaces, source_address
from bfrun.agent.mpi_rank import decode_report
from bfrun.agent.ports import free_port
from bfrun.allocation import is_in_allocation, read_allocation
from bfrun.config import LaunchConfig
from bfrun.driver.membership import Failure, describe_status
from bfrun.driver.report import Leftovers, Verdict, make_verdict
from bfrun.driver.signals import SignalWatch, stop_myself
from bfrun.env import forwarded_environment
from bfrun.errors import LaunchError
from bfrun.hosts import Host, is_local
from bfrun.launch.bootstrap import agent_archive
from bfrun.mpi.command import MpiCommand, make_command
from bfrun.mpi.implementation import find_implementation
from bfrun.probe import interface_addresses

# What stands between mpirun and a rank, sent along on the command line.
_FILES = (
    "errors.py",
    "agent/__init__.py",
    "agent/kernel.py",
    "agent/procs.py",
    "agent/mpi_rank.py",
)
_PROGRAM = (
    "import sys,os,base64;f=os.memfd_create('bfrun');"
    "os.write(f,base64.b64decode(sys.argv[2]));"
    "sys.path.insert(0,'/proc/self/fd/%d'%f);"
    "from bfrun.agent.mpi_rank import main;main(sys.argv[1],sys.argv[3:])"
)
_TERM_GRACE_S = 4.0
_SHOWN = "ARCHIVE"


def run_mpi(config: LaunchConfig, environ: Mapping[str, str]) -> int:
    """Start the ranks of ``config`` with mpirun and return the exit code.

    With ``config.dry_run`` the command is printed and nothing is started.

    Raises:
        LaunchError: There is no MPI, or the settings do not fit it.
    """
    marker = f"--bfrun-{secrets.token_hex(8)}--"
    archive = base64.b64encode(agent_archive(_FILES)).decode("ascii")
    command = plan_mpi(config, environ, marker, archive)
    shown = shlex.join(command.argv).replace(archive, _SHOWN)
    if config.dry_run:
        print(shown)
        return 0
    if config.verbose:
        print(f"bfrun: {shown}", file=sys.stderr)
    verdict = MpiJob(command, marker, environ, config.verbose).run()
    if verdict.report:
        print(verdict.report, file=sys.stderr, flush=True)
    return verdict.exit_code


def plan_mpi(
    config: LaunchConfig, environ: Mapping[str, str], marker: str, archive: str
) -> MpiCommand:
    """Return the command of a job.

    Args:
        config: What the user asked for.
        environ: Environment of bfrun.
        marker: Stands before a rank's report.
        archive: Code that reports, in base64.
    """
    for given, option in (
        (config.check, "--check"),
        (config.gpus_per_rank, "--gpus-per-rank"),
        (config.output_dir, "--output-dir"),
        (config.timeline_filename, "--timeline-filename"),
        (config.only_rank, "--only-rank"),
        (config.prefix_timestamp, "--prefix-timestamp"),
        (config.stdin, "--stdin"),
    ):
        if given:
            raise LaunchError(
                f"{option} does not go with --launcher mpi, where mpirun starts the "
                "ranks and shows their output; pass mpirun's own option in "
                "--extra-mpi-flags"
            )
    mpi = find_implementation(config.prefix, environ)
    if config.verbose:
        print(f"bfrun: {mpi}", file=sys.stderr)
    hosts = _hosts(config, environ)
    python = config.python or sys.executable
    wrapper = [python, "-I", "-S", "-c", _PROGRAM, marker, archive]
    variables = {
        **forwarded_environment(environ),
        **dict(config.environment),
        "BLUECOMM_START_TIMEOUT_S": str(config.start_timeout_s),
    }
    variables.setdefault("MASTER_ADDR", _head_address(hosts, config.network_interface))
    variables.setdefault("MASTER_PORT", str(free_port()))
    if config.ranks_per_machine is not None:
        variables["BLUECOMM_RANKS_PER_MACHINE"] = str(config.ranks_per_machine)
    return make_command(
        config,
        hosts,
        mpi,
        variables,
        [*wrapper, *config.command],
        takes_turns=_takes_turns(config, hosts),
        own_address=_own_address(hosts),
    )


def _hosts(config: LaunchConfig, environ: Mapping[str, str]) -> list[tuple[Host, int]]:
    """Return the hosts with their slots; empty: this machine takes all ranks."""
    hosts: Sequence[Host] = config.hosts
    cores: Mapping[Host, int] = {}
    if not hosts and is_in_allocation(environ):
        allocation = read_allocation(environ)
        hosts, cores = allocation.hosts, allocation.cpus
    if not hosts and config.world_size is None:
        raise LaunchError(
            "number of ranks unknown: give -np N, or hosts with -H host:slots,... or "
            "--hostfile F"
        )
    found = []
    for host in hosts:
        slots = host.slots or cores.get(host)
        if slots is None:
            raise LaunchError(
                f"--launcher mpi: host '{host}' is given without slots, and bfrun asks "
                f"no host when mpirun starts the ranks; write {host}:SLOTS"
            )
        found.append((host, slots))
    total = sum(slots for _, slots in found)
    wanted = config.world_size or total
    if found and wanted > total and not config.oversubscribe:
        raise LaunchError(
            f"-np {wanted}: the hosts have {total} slots; lower -np, give more slots, "
            "or allow more ranks than slots with --oversubscribe"
        )
    return found


def _takes_turns(config: LaunchConfig, hosts: Sequence[tuple[Host, int]]) -> bool:
    if config.oversubscribe:
        return True
    own = [address for _, address in interface_addresses()]
    here = [slots for host, slots in hosts if is_local(host, own)]
    ranks = sum(here) if hosts else config.world_size or 0
    return ranks > len(os.sched_getaffinity(0))


def _own_address(hosts: Sequence[tuple[Host, int]]) -> str | None:
    """Return where the other hosts reach this one."""
    own = [address for _, address in interface_addresses()]
    remote = [host for host, _ in hosts if not is_local(host, own)]
    return source_address(remote[0].name) if remote else None


def _head_address(hosts: Sequence[tuple[Host, int]], pattern: str | None) -> str:
    """Return where rank 0 is reached by the other ranks."""
    if not hosts:
        return "127.0.0.1"
    own = [Address(*entry) for entry in interface_addresses()]
    if len(hosts) > 1 and is_local(hosts[0][0], [address.ip for address in own]):
        allowed = choose_interfaces(own, pattern)
        return allowed[0].ip if allowed else hosts[0][0].name
    return hosts[0][0].name


class MpiJob:
    """One mpirun and what the ranks below it reported.

    Args:
        command: What to run.
        marker: Stands before a report.
        environ: Environment of bfrun.
        verbose: Say what is left even if it is nothing.
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
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                return
            if fd not in ready and process.poll() is not None:
                break  # something that it has left behind holds its standard error
            if fd in ready:
                data = os.read(fd, 65536)
                if not data:
                    break
                self._take(data)
        self._show(self._buffer)
        # It has closed its standard error, so it ends, or hangs with nothing to say.
        limit = time.monotonic() + _TERM_GRACE_S
        while process.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)

    def _end(self, process: subprocess.Popen[bytes], number: int) -> None:
        if number == SignalWatch.SUSPEND:
            stop_myself()  # the ranks go on, as they do with agents
            return
        if self._ended_by is None:
            self._ended_by = number
            self._kill_at = time.monotonic() + _TERM_GRACE_S
            process.send_signal(signal.SIGTERM)
        else:
            self._kill_at = 0.0

    def _take(self, data: bytes) -> None:
        """Pass on what mpirun and the ranks say, but for reports."""
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
                self._show(b"bfrun: a report of a rank was torn apart by mpirun\n")

    def _show(self, data: bytes) -> None:
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()

    def _note(self, report: Mapping[str, Any]) -> None:
        host, rank, status = report["host"], int(report["rank"]), int(report["status"])
        self._left[host] = self._left.get(host, 0) + int(report["left"])
        # One that ended because it was told to is not to blame.
        if status == 0 or report["told"]:
            return
        phrase, cause, exit_code = describe_status(status)
        where = f"rank {rank} on {host}"
        text = report["error"] and f"{where}: {report['error']}"
        text = text or f"{where} (pid {report['pid']}) {phrase}"
        at_s = time.monotonic() - self._started
        self._failures.append(Failure(rank, cause, text, exit_code, at_s))
        self._tails[rank] = report["tail"]

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
            "reported a failure; what it said is above",
        )
