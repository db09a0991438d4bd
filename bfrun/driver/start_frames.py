"""Makes the frames that tell an agent which ranks to start."""

from __future__ import annotations

from bfrun.config import LaunchConfig
from bfrun.env import FOREIGN_PREFIXES
from bfrun.frames.agent_to_rank import Welcome
from bfrun.frames.driver_to_agent import RankCommand, Start
from bfrun.plan import HostPlan, LaunchPlan, ProcessSpec

# A frame for a thousand ranks could be too long, because it has a copy of the
# environment for each rank.
_RANKS_PER_FRAME = 32


def start_frames(
    plan: LaunchPlan,
    host: HostPlan,
    config: LaunchConfig,
    *,
    job: str,
    secret: str,
    master_port: int,
) -> list[Start]:
    """Return the ``start`` frames for the agent of ``host``, in rank order.

    Args:
        plan: The whole job.
        host: The agent's part of the job.
        config: Time limits, timeline, and whether rank 0 gets standard input.
        job: Id of the job, hexadecimal.
        secret: Key of the ranks' data connections, hexadecimal.
        master_port: Port that is free on the host of rank 0.
    """
    first = plan.hosts[0].addresses
    master = {
        "MASTER_ADDR": first[0] if first else "127.0.0.1",
        "MASTER_PORT": str(master_port),
    }

    def command_of(spec: ProcessSpec) -> RankCommand:
        placement = spec.placement
        welcome = Welcome(
            job=job,
            epoch=0,
            secret=secret,
            host=host.host.name,
            addresses=list(host.addresses or ("127.0.0.1",)),
            rank=placement.rank,
            size=placement.world_size,
            local_rank=placement.local_rank,
            local_size=placement.local_world_size,
            machine_rank=placement.machine_rank,
            machine_size=placement.machine_world_size,
            start_timeout_s=config.start_timeout_s,
            failure_timeout_s=config.failure_timeout_s,
            trace=config.timeline_filename is not None,
            survives_losses=config.on_failure == "continue",
        )
        return RankCommand(
            rank=spec.rank,
            argv=list(spec.command),
            cwd=spec.cwd,
            # A killed rank would lose the output in Python's buffers.
            env={"PYTHONUNBUFFERED": "1", **master, **spec.environment},
            cpus=list(spec.cpus),
            stdin=config.stdin and spec.rank == 0,
            welcome=welcome,
        )

    processes = [command_of(spec) for spec in host.processes]
    return [
        Start(
            job=job,
            failure_timeout_s=config.failure_timeout_s,
            link_timeout_s=config.link_timeout_s,
            foreign_prefixes=list(FOREIGN_PREFIXES),
            processes=processes[first : first + _RANKS_PER_FRAME],
        )
        for first in range(0, len(processes), _RANKS_PER_FRAME)
    ]
