"""Makes the frames that tell an agent which ranks to start."""

from __future__ import annotations

import os
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.env import FOREIGN_PREFIXES, Placement
from bfrun.frames.agent_to_rank import Welcome
from bfrun.frames.driver_to_agent import RankCommand, Start
from bfrun.plan import HostPlan, LaunchPlan, ProcessSpec, plan_process

# A frame for a thousand ranks could be too long, because it has a copy of the
# environment for each rank.
_RANKS_PER_FRAME = 32


class StartFrames:
    """Makes the ``start`` frames of one job.

    Args:
        plan: The whole job.
        config: Time limits, timeline, and whether rank 0 gets standard input.
        job: Id of the job, hexadecimal.
        secret: Key of the ranks' data connections, hexadecimal.
        master_port: Port that is free on the host of rank 0.
        attach_key: Key of drivers that take over, if the job may detach.
        outlives_silence: Whether agents also detach from a driver that is silent.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        config: LaunchConfig,
        *,
        job: str,
        secret: str,
        master_port: int,
        attach_key: str = "",
        outlives_silence: bool = False,
    ) -> None:
        self._config = config
        self._outlives_silence = outlives_silence
        self._attach_key = attach_key
        self._job = job
        self._secret = secret
        first = plan.hosts[0].addresses
        self._master = {
            "MASTER_ADDR": first[0] if first else "127.0.0.1",
            "MASTER_PORT": str(master_port),
        }
        self._hosts = len(plan.hosts)
        self._of_rank = {
            spec.rank: (host, spec) for host in plan.hosts for spec in host.processes
        }

    def of_host(self, host: HostPlan) -> list[Start]:
        """Return the frames for the agent of ``host``, in rank order."""
        commands = [self._command(host, spec, 0) for spec in host.processes]
        # An agent without ranks learns the settings of the job, too.
        return [
            self._start(commands[first : first + _RANKS_PER_FRAME])
            for first in range(0, max(len(commands), 1), _RANKS_PER_FRAME)
        ]

    def again(self, rank: int, stay: int) -> Start:
        """Return the frame that starts a rank again in the slot that it had.

        Args:
            rank: The rank.
            stay: Number of the process.
        """
        host, spec = self._of_rank[rank]
        return self._start([self._command(host, spec, stay)])

    def newcomer(
        self, host: HostPlan, position: int, rank: int, stay: int, size: int
    ) -> Start:
        """Return the frame that starts a rank in any slot of a job that grows.

        Args:
            host: Its host.
            position: Number of its slot on the host.
            rank: The rank.
            stay: Number of the process.
            size: Number of ranks of the job.

        Raises:
            LaunchError: The host lacks the GPUs or the cores for it.
        """
        # The script may name more slots than the host had at the start.
        host = replace(host, slots=max(host.slots, position + 1))
        placement = Placement(
            rank=rank,
            world_size=size,
            local_rank=position,
            local_world_size=host.slots,
            machine_rank=host.index,
            machine_world_size=max(self._hosts, host.index + 1),
        )
        spec = plan_process(self._config, host, position, placement, os.environ)
        return self._start([self._command(host, spec, stay)])

    def _start(self, commands: list[RankCommand]) -> Start:
        config = self._config
        return Start(
            job=self._job,
            failure_timeout_s=config.failure_timeout_s,
            link_timeout_s=config.link_timeout_s,
            foreign_prefixes=list(FOREIGN_PREFIXES),
            detached_limit_s=(config.detached_limit_s or 0.0)
            if self._attach_key
            else 0.0,
            attach_key=self._attach_key,
            outlives_silence=self._outlives_silence,
            processes=commands,
        )

    def _command(self, host: HostPlan, spec: ProcessSpec, stay: int) -> RankCommand:
        placement, config = spec.placement, self._config
        welcome = Welcome(
            job=self._job,
            epoch=0,
            secret=self._secret,
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
            respawns=config.respawn,
            splits=config.partition == "both",
            grows=config.may_grow,
            stay=stay,
        )
        return RankCommand(
            rank=spec.rank,
            argv=list(spec.command),
            cwd=spec.cwd,
            # A killed rank would lose the output in Python's buffers.
            env={"PYTHONUNBUFFERED": "1", **self._master, **spec.environment},
            cpus=list(spec.cpus),
            # A later process would miss the input that the first one has read.
            stdin=config.stdin and spec.rank == 0 and stay == 0,
            welcome=welcome,
        )
