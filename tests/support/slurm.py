"""A two-node Slurm with its own daemons and munge, for the duration of a test.

Both nodes are this machine, each with its own ``slurmd``. Needs root and Debian's
slurm-wlm and munge. Its configuration, ports, key and folders are separate from those
of a Slurm that the machine may have.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.deadlines import DEADLINE_S, JOB_S
from tests.support.launch import ROOT
from tests.support.ports import held_port
from tests.support.python_path import python_path

NODES = ("node1", "node2")
CORES = 8
_TOOLS = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo", "munged")
_SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"

# Settings for running as root, on few cores, in a container without cgroups.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=2
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@dataclass
class Slurm:
    """A running Slurm; its commands find it through ``environ``."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    holders: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def run(
        self,
        *command: str,
        environ: Mapping[str, str] | None = None,
        limit_s: float = JOB_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command outside of any job, such as ``srun`` or ``sbatch``."""
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env={**os.environ, **self.environ, **(environ or {})},
            cwd=ROOT,
        )

    def batch(
        self, script: str, *options: str, limit_s: float = JOB_S
    ) -> tuple[int, str]:
        """Run a batch script to its end; return its exit code and output."""
        # sbatch --wait polls at growing intervals of up to half a minute.
        output, code = self.folder / "batch.out", self.folder / "batch.code"
        for file in (output, code):
            file.unlink(missing_ok=True)
        path = self.folder / "batch.sh"
        text = f"(\n{script}\n)\necho $? > {code}.new\nmv {code}.new {code}\n"
        path.write_text(f"#!/bin/bash\n{text}")
        done = self.run("sbatch", "-o", str(output), *options, str(path))
        assert done.returncode == 0, done.stderr
        _until(code.exists, self, f"the batch script does not end: {script}", limit_s)
        return int(code.read_text()), output.read_text()


def _reason_for_none() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_SYSTEM_PATH) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextlib.contextmanager
def make_slurm(folder: Path) -> Iterator[Slurm]:
    """Start a Slurm, and stop all its processes at the end.

    Skips the test with the reason where Slurm cannot run; fails it in CI.
    """
    reason = _reason_for_none()
    if reason is not None:
        text = f"no Slurm on this machine: {reason}"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    slurm = Slurm(folder)
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}:{_SYSTEM_PATH}"
    slurm.environ = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PYTHONPATH": python_path(ROOT),
        "PATH": path,
        "OMP_NUM_THREADS": "1",
    }
    try:
        _start_munge(slurm)
        _start_daemons(slurm)
        _wait_until_idle(slurm)
        yield slurm
    finally:
        _stop(slurm)
        slurm.holders.close()


def _start_munge(slurm: Slurm) -> None:
    # munged refuses a socket below any folder that others can write to.
    folder = slurm.folder / "munge"
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {
        name: f"--{name}-file={folder / name}" for name in ("key", "log", "pid", "seed")
    }
    _start(
        slurm,
        "munged",
        "-F",
        "--force",
        f"--socket={folder / 'socket'}",
        *files.values(),
    )
    _until(lambda: (folder / "socket").exists(), slurm, "munged has no socket")


def _start_daemons(slurm: Slurm) -> None:
    controller_port, *ports = _hold_ports(slurm, 1 + len(NODES))
    for name in ("state", *(f"spool.{node}" for node in NODES)):
        (slurm.folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    nodes = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
        f"CPUs={CORES} State=UNKNOWN"
        for node, port in zip(NODES, ports, strict=True)
    ]
    text = _CONFIGURATION.format(
        host=host,
        folder=slurm.folder,
        controller_port=controller_port,
        nodes="\n".join(nodes),
    )
    Path(slurm.environ["SLURM_CONF"]).write_text(text)
    _start(slurm, "slurmctld", "-D")
    for node in NODES:
        _start(slurm, "slurmd", "-D", "-N", node)


def _hold_ports(slurm: Slurm, count: int) -> list[int]:
    """Return ports for daemons, which no other process is given before the end."""
    return [slurm.holders.enter_context(held_port()) for _ in range(count)]


def _start(slurm: Slurm, name: str, *options: str) -> None:
    program = shutil.which(name, path=_SYSTEM_PATH)
    assert program is not None
    with (slurm.folder / f"{name}{len(slurm.daemons)}.out").open("wb") as log:
        slurm.daemons.append(
            subprocess.Popen(
                [program, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **slurm.environ},
                cwd=slurm.folder,
                start_new_session=True,
            )
        )


def _wait_until_idle(slurm: Slurm) -> None:
    def all_idle() -> bool:
        states = slurm.run("sinfo", "-h", "-N", "-o", "%t").stdout.split()
        return states == ["idle"] * len(NODES)

    _until(all_idle, slurm, "not all nodes are idle")


def _until(
    done: Callable[[], bool], slurm: Slurm, what: str, limit_s: float = DEADLINE_S
) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
                for path in slurm.folder.glob("*.out")
            )
            raise RuntimeError(f"{what} after {limit_s} s\n{logs}")
        time.sleep(0.05)


def _stop(slurm: Slurm) -> None:
    """End jobs, then daemons, then the step daemons that slurmd has detached."""
    if len(slurm.daemons) == 2 + len(NODES):
        slurm.run("scancel", "--full", "--user=root")
    for daemon in reversed(slurm.daemons):
        daemon.send_signal(signal.SIGTERM)
    for daemon in reversed(slurm.daemons):
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    mark = f"SLURM_CONF={slurm.environ['SLURM_CONF']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
