"""What DDP under torchrun does after the same kill -9: the peer of ``survive``."""

from __future__ import annotations

import dataclasses
import re
import sys
import time

from bluecomm.bench.survival.faults import Fault
from bluecomm.bench.survival.job import Command, JobEffort, cause, started
from bluecomm.bench.training.contenders import DDP


@dataclasses.dataclass(frozen=True)
class PeerOutcome:
    """How a job of another library has gone on after a fault.

    Attributes:
        peer: Name of the peer.
        fault: Name of the fault.
        ranks: Number of ranks.
        goes_on: Whether the other ranks have made another step.
        seconds: Seconds from the fault until then, or else until the job ended.
        repeated: Steps that are done again, because the job saves no checkpoint.
        text: The error, or how the job goes on.
    """

    peer: str
    fault: str
    ranks: int
    goes_on: bool
    seconds: float
    repeated: int
    text: str


def with_torchrun(ranks: int, restarts: int) -> Command:
    """Return how torchrun starts a job of DDP over gloo.

    Args:
        ranks: Number of ranks.
        restarts: How often torchrun may start all ranks again.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    # Otherwise ranks that are started again may find the addresses of dead ranks in the
    # store, which lives on (https://github.com/pytorch/pytorch/issues/135712).
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return Command(DDP, "gloo", launcher, environ)


def measure_ddp(fault: Fault, effort: JobEffort, restarts: int) -> PeerOutcome:
    """Kill ranks of a job of DDP over gloo.

    Args:
        fault: The ranks, by name.
        effort: How long the job trains.
        restarts: How often torchrun may start all ranks again.

    Raises:
        RuntimeError: The job failed before the fault.
    """
    command = with_torchrun(fault.ranks, restarts)
    with started(command, fault, effort) as job:
        job.wait_for_step(effort.before)
        pids, fault_ns = job.pids(), time.monotonic_ns()
        cause(fault, pids, print)
        code = job.wait()
        end_ns, logs, output = time.monotonic_ns(), job.logs(), job.output
    anew = [log for log in logs if log.steps and log.steps[0].end_ns > fault_ns]
    first = [log.steps[1].end_ns for log in anew if len(log.steps) > 1]
    done = [log.steps[-1].number for log in logs if log.steps and log not in anew]
    ended = f"exit code {code}: {_error(output)}"
    return PeerOutcome(
        peer=f"torchrun --max-restarts {restarts}, DDP over gloo",
        fault=fault.name,
        ranks=fault.ranks,
        goes_on=bool(first),
        seconds=1e-9 * (min(first, default=end_ns) - fault_ns),
        repeated=max(done) if first else 0,
        text="starts all ranks again" if first else ended,
    )


def _error(output: str) -> str:
    """Return the last error of a rank in the output, in short."""
    errors = re.findall(r"\b(RuntimeError: .{,160})", output)
    return errors[-1] if errors else "no error of a rank"
