"""Formats a plan as text, for ``--dry-run`` and ``--verbose``."""

from __future__ import annotations

import shlex

from bfrun.nccl_net import describe_nccl_net
from bfrun.plan import LaunchPlan
from bfrun.text_table import align
from bfrun.wording import count, format_numbers


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
                    format_numbers(spec.cpus, ",") or "any",
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
    return "\n".join([heading, *common, *align(rows, left=len(rows[0]))])


def describe_addresses(plan: LaunchPlan) -> str:
    """Return a table of the addresses that carry data, best first."""
    rows = [("host", "data addresses")]
    for each in plan.hosts:
        addresses = ", ".join(each.addresses) or "none needed, one machine"
        rows.append((each.host.name, addresses))
    return "\n".join(align(rows, left=len(rows[0])))
