"""The settings of one launch, from the command line or ``bfrun.run``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from bfrun.errors import LaunchError
from bfrun.hosts import Host

Launcher = Literal["auto", "local", "ssh", "slurm", "mpi"]
Encryption = Literal["off", "auth", "full"]
BindTo = Literal["core", "numa", "none"]
OnFailure = Literal["end", "continue"]
Partition = Literal["primary", "both"]


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise LaunchError(
            "the working folder has been deleted; change to one that exists (cd)"
        ) from None


@dataclass(frozen=True)
class LaunchConfig:
    """Everything that the user asked for, parsed once.

    Attributes:
        command: Program and arguments that every rank runs.
        world_size: Number of ranks (``-np``); None means all slots of the hosts.
        hosts: Machines in rank order; if empty, this machine runs every rank.
        oversubscribe: Allow more ranks than slots.
        ranks_per_machine: Split each host into simulated machines of this many ranks.
        launcher: How agents start: ``local``, ``ssh``, ``slurm`` (srun) or ``auto``.
            In a Slurm job and without hosts, ``auto`` uses srun on all hosts of the
            job. Otherwise it starts agents directly on this machine and over SSH on
            others. With ``mpi`` there are no agents, and mpirun starts the ranks.
        gpus_per_rank: Number of GPUs that each rank sees (``CUDA_VISIBLE_DEVICES``).
        share_gpus: Let ranks of one host use the same GPU.
        bind_to: CPUs that a rank may run on.
        cwd: Working directory of every rank.
        environment: Variables from ``-x`` and ``--env-file``, in order.
        python: Interpreter of the agents; None means the path of this interpreter, or
            ``python3`` where that path does not exist.
        ssh_port: Port of every host; None means the one in ``~/.ssh/config``, or 22.
        ssh_identity_file: Private key; None means those of the SSH settings, the SSH
            agent and the default files.
        ssh_config: SSH settings file; None means ``~/.ssh/config``.
        network_interface: Interfaces that carry data (name, glob, ``^exclude``, CIDR,
            separated by commas); None means those that every other host can reach.
        enable_net: Let NCCL in the ranks use bluecomm's network plugin.
        use_infiniband: With ``mpi``, carry data over InfiniBand (UCX).
        extra_mpi_flags: With ``mpi``, more options for mpirun, quoted as for a shell.
        prefix: With ``mpi``, the folder of the MPI installation (``bin/mpirun``).
        stdin: Pass this process's standard input to rank 0.
        output_dir: Folder in which each run makes a folder with one file per rank and
            stream.
        timeline_filename: File for the timeline of all ranks; None for no timeline.
        autotune: Tune the optimizers of bluecomm in the ranks while they train.
        autotune_file: File for the results of autotuning, which this implies.
        autotune_plot: Picture of its trials; implies autotuning, too.
        prefix_timestamp: Begin each line of output with the time.
        only_rank: Ranks whose output is shown; if empty, all.
        verbose: Print the plan, addresses, agents and connections.
        dry_run: Print the plan and start nothing.
        check: Check all hosts and start nothing.
        encryption: Protection of messages over TCP: ``off``, ``auth`` or ``full``; None
            means that of ``BLUECOMM_ENCRYPTION`` in the ranks' environment.
        link_timeout_s: Seconds that the network between two hosts may carry nothing
            before the job fails.
        start_timeout_s: Seconds within which every host must answer, and then every
            rank must call ``init``.
        failure_timeout_s: Seconds that a rank may stay stopped before the job fails.
        on_failure: ``end`` to end the job when a rank fails, ``continue`` to let the
            other ranks go on.
        min_np: With ``continue``, the number of ranks below which the job ends, after
            ``elastic_timeout_s``; None means 1.
        elastic_timeout_s: With ``continue``, seconds for which there may be fewer ranks
            than ``min_np``; None means 600.
        respawn: With ``continue``, start lost ranks again; they join the running job.
        respawn_after_s: Where lost ranks are started again, seconds from the loss of a
            rank to its next start; None means 1.
        partition: With ``respawn``, which ranks train on while the network is cut:
            those of the ``primary`` side, or of ``both`` sides.
        max_np: With ``continue``, the number of ranks up to which the job grows into
            free slots; None means the number of slots.
        host_discovery_script: With ``continue``, a program that prints the hosts which
            the job may use now. The job grows and shrinks with them.
        detached_limit_s: With ``continue``, seconds for which the job goes on without
            a driver; 0 if it ends with the driver. None means 600 where that is
            possible (``launch/detaching.py``), otherwise 0.
        job_name: Name of the job for ``--attach``; None means a random one.
        must_detach: Fail if the job cannot be made to detach, because the user has
            asked for a limit or a name.
    """

    command: tuple[str, ...]
    world_size: int | None = None
    hosts: tuple[Host, ...] = ()
    oversubscribe: bool = False
    ranks_per_machine: int | None = None
    launcher: Launcher = "auto"
    gpus_per_rank: int | None = None
    share_gpus: bool = False
    bind_to: BindTo = "none"
    cwd: str = field(default_factory=_working_folder)
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
    autotune: bool = False
    autotune_file: str | None = None
    autotune_plot: str | None = None
    prefix_timestamp: bool = False
    only_rank: tuple[int, ...] = ()
    verbose: bool = False
    dry_run: bool = False
    check: bool = False
    encryption: Encryption | None = None
    link_timeout_s: float = 30.0
    start_timeout_s: float = 300.0
    failure_timeout_s: float = 120.0
    on_failure: OnFailure = "end"
    min_np: int | None = None
    elastic_timeout_s: float | None = None
    respawn: bool = False
    respawn_after_s: float | None = None
    partition: Partition = "primary"
    max_np: int | None = None
    host_discovery_script: str | None = None
    detached_limit_s: float | None = None
    job_name: str | None = None
    must_detach: bool = False

    @property
    def may_grow(self) -> bool:
        """Whether the number of ranks may change while the job runs."""
        return self.max_np is not None or self.host_discovery_script is not None
