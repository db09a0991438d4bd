"""Formats a plan as text, for ``--dry-run`` and ``--verbose``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bfrun.nccl_net import describe_nccl_net
from bfrun.plan import LaunchPlan
from bfrun.wording import count


def describe_plan(plan: LaunchPlan) -> str:
    """Return a table with one line per rank, below their common settings."""
    first = plan.processes[0]
    machines = first.placement.machine_world_size
    rows = [("rank", "host", "local rank", "machine rank", "threads", "cpus", "gpus")]
    for host in plan.hosts:
        for spec in host.processes:
            placement = spec.placement
            rows.append(
                (
                    str(placement.rank),
                    host.host.name,
                    f"{placement.local_rank} of {placement.local_world_size}",
                    f"{placement.machine_rank} of {placement.machine_world_size}",
                    spec.environment.get("OMP_NUM_THREADS", "?"),
                    _ranges(spec.cpus) or "any",
                    spec.environment.get("CUDA_VISIBLE_DEVICES") or "any",
                )
            )
    heading = (
        f"{count(plan.world_size, 'rank')} on {count(len(plan.hosts), 'host')}, "
        f"{count(machines, 'machine')}"
    )
    common = [f"command: {shlex.join(first.command)}", f"directory: {first.cwd}"]
    if (net := describe_nccl_net(first.environment)) is not None:
        common.append(f"NCCL's network: {net}")
    return "\n".join([heading, *common, *_columns(rows)])


def describe_addresses(plan: LaunchPlan) -> str:
    """Return a table of the addresses that carry data, best first."""
    rows = [("host", "data addresses")]
    for each in plan.hosts:
        addresses = ", ".join(each.addresses) or "none needed, one machine"
        rows.append((each.host.name, addresses))
    return "\n".join(_columns(rows))


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in short form, such as ``0-3,8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
