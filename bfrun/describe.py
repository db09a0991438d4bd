"""A plan as text, for ``--dry-run`` and ``--verbose``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bfrun.nccl_net import describe_nccl_net
from bfrun.plan import LaunchPlan


def describe_plan(plan: LaunchPlan) -> str:
    """Return a table with one line per rank, and what all ranks have in common."""
    first = plan.processes[0]
    machines = first.placement.machine_world_size
    rows = [("rank", "host", "local rank", "machine rank", "threads", "cpus", "gpus")]
    for host in plan.hosts:
        for spec in host.processes:
            place = spec.placement
            rows.append(
                (
                    str(place.rank),
                    host.host.name,
                    f"{place.local_rank} of {place.local_world_size}",
                    f"{place.machine_rank} of {place.machine_world_size}",
                    spec.environment.get("OMP_NUM_THREADS", "?"),
                    _ranges(spec.cpus) or "any",
                    spec.environment.get("CUDA_VISIBLE_DEVICES") or "any",
                )
            )
    heading = (
        f"{_count(plan.world_size, 'rank')} on {_count(len(plan.hosts), 'host')}, "
        f"{_count(machines, 'machine')}"
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
    """Return lines with the cells of ``rows`` below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in short form: ``0-3,8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
