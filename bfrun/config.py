"""The settings of one launch, parsed once by the command line or ``bfrun.run``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from bfrun.hosts import Host

Launcher = Literal["auto", "local", "ssh", "slurm", "mpi"]
BindTo = Literal["core", "numa", "none"]


@dataclass(frozen=True)
class LaunchConfig:
    """What the user asked for; nothing in it is looked up again later.

    Attributes:
        command: Program and arguments that every rank runs.
        world_size: Number of ranks (``-np``); None: all slots of the hosts.
        hosts: Machines in rank order; empty: this machine takes every rank.
        oversubscribe: Allow more ranks than slots.
        ranks_per_machine: Cut each host into simulated machines of this many ranks.
        launcher: How agents start: ``local``, ``ssh``, ``slurm`` (srun), or ``auto``
            (srun on all hosts of the Slurm job that this process is in, unless hosts
            are given; else local for this machine, SSH for others). ``mpi``: there are
            no agents, mpirun starts the ranks.
        gpus_per_rank: GPUs that each rank sees through ``CUDA_VISIBLE_DEVICES``.
        bind_to: CPUs that a rank may run on.
        cwd: Working directory of every rank.
        environment: Variables from ``-x`` and ``--env-file``, in order.
        python: Interpreter of agents on other hosts; None: this one's path, else
            ``python3``.
        ssh_port: Port for every host; None: from ``~/.ssh/config``, else 22.
        ssh_identity_file: Private key; None: SSH settings, agent and default keys.
        ssh_config: SSH settings file; None: ``~/.ssh/config``.
        network_interface: Which interfaces carry data (name, glob, ``^exclude``, CIDR,
            separated by commas); None: what every other host can reach.
        enable_net: NCCL in the ranks uses bluecomm's network plugin.
        use_infiniband: With ``mpi``: carry data over InfiniBand (UCX).
        extra_mpi_flags: With ``mpi``: more options for mpirun, quoted as for a shell.
        prefix: With ``mpi``: folder of the MPI whose ``bin/mpirun`` is used.
        stdin: Give this process's standard input to rank 0.
        output_dir: Folder for a file per rank and stream.
        timeline_filename: Where the timeline of all ranks goes; None: none is made.
        prefix_timestamp: Put the time before each line of output.
        only_rank: Ranks whose output is shown; empty: all.
        verbose: Say what is decided (plan, addresses, agents, links).
        dry_run: Print the plan and start nothing.
        check: Run the pre-flight of all hosts and start nothing.
        start_timeout_s: Limit for all ranks to reach ``init``.
        failure_timeout_s: How long a rank may be frozen before the job ends.
    """

    command: tuple[str, ...]
    world_size: int | None = None
    hosts: tuple[Host, ...] = ()
    oversubscribe: bool = False
    ranks_per_machine: int | None = None
    launcher: Launcher = "auto"
    gpus_per_rank: int | None = None
    bind_to: BindTo = "none"
    cwd: str = field(default_factory=os.getcwd)
    environment: tuple[tuple[str, str], ...] = ()
    python: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    ssh_config: str | None = None
    network_interface: str | None = None
    enable_net: bool = False
    use_infiniband: bool = False
    extra_mpi_flags: str = ""
    prefix: str | None = None
    stdin: bool = False
    output_dir: str | None = None
    timeline_filename: str | None = None
    prefix_timestamp: bool = False
    only_rank: tuple[int, ...] = ()
    verbose: bool = False
    dry_run: bool = False
    check: bool = False
    start_timeout_s: float = 300.0
    failure_timeout_s: float = 120.0
