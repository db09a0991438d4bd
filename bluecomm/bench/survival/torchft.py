"""Measures torchft after the same kill -9, as a peer of ``survive``.

Each rank is a replica of its own, so the others train on without a restart.
``python -m bluecomm.bench.survival.torchft N COMMAND...`` starts the server by which N
replicas agree who is left (torchft's lighthouse), and runs the command for each.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from typing import Any

from bluecomm.bench.survival.faults import Fault
from bluecomm.bench.survival.job import Command, JobEffort, cause, started
from bluecomm.bench.survival.outcome import longest_gap_ms
from bluecomm.bench.survival.torchrun import PeerOutcome
from bluecomm.bench.survival.worker import TORCHFT

# Replicas that have not been heard of for so long are left out. torchft's default is
# 5 s.
_HEARTBEAT_MS = 1000


def is_installed() -> bool:
    """Return whether torchft can be measured."""
    return importlib.util.find_spec("torchft") is not None


def measure_torchft(fault: Fault, effort: JobEffort) -> PeerOutcome:
    """Kill ranks of a job of torchft over gloo.

    Raises:
        RuntimeError: The job failed before the fault.
    """
    launcher = [sys.executable, "-m", __name__, str(fault.ranks), sys.executable]
    command = Command(TORCHFT, "gloo", launcher, {})
    with started(command, fault, effort) as job:
        job.wait_for_step(effort.before)
        fault_ns = time.monotonic_ns()
        cause(fault, job.pids(), print)
        code = job.wait()
        record = job.record(fault_ns, code)
    others = [log for log in record.logs if log.rank not in fault.victims]
    gap_ms = longest_gap_ms(others, record)
    return PeerOutcome(
        peer="torchft, DDP over gloo",
        fault=fault.name,
        ranks=fault.ranks,
        goes_on=gap_ms > 0,
        seconds=1e-3 * gap_ms,
        repeated=0,
        text=f"the longest time between two steps; exit code {code} in the end",
    )


def main() -> int:
    """Run all replicas, and return the largest exit code of those not killed."""
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found]

    server: Any = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=10_000,
        heartbeat_timeout_ms=_HEARTBEAT_MS,
    )
    environ = {**os.environ, "TORCHFT_LIGHTHOUSE": server.address()}
    count, *command = sys.argv[1:]
    replicas = [
        subprocess.Popen(command, env={**environ, "RANK": str(rank)})
        for rank in range(int(count))
    ]
    codes = [replica.wait() for replica in replicas]
    server.shutdown()
    return max(0, *codes)


if __name__ == "__main__":
    sys.exit(main())
