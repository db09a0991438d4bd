"""Starts programs as steps of a Slurm job; srun carries their input and output."""

from __future__ import annotations

from collections.abc import Sequence

from bfrun.allocation import Allocation
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher, ProcessConnection
from bfrun.launch.local import LocalConnection


class SlurmLauncher(Launcher):
    """Starts each program by its own ``srun``: one task, with all cores of its host.

    Args:
        allocation: The job of this process.
    """

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation

    def start(
        self, host: Host, argv: Sequence[str], timeout_s: float
    ) -> ProcessConnection:
        """Start ``argv`` on ``host``; see :class:`Launcher`."""
        try:
            return LocalConnection([*self.command(host), *argv])
        except OSError as error:
            raise LaunchError(
                f"host '{host.name}': SLURM_JOB_ID is set, but srun cannot be started: "
                f"{error}; put Slurm's commands on PATH, or use --launcher local, or "
                "name hosts with -H"
            ) from error

    def command(self, host: Host) -> list[str]:
        """Return the srun command that starts one program on ``host``."""
        return [
            "srun",
            f"--jobid={self._allocation.job}",
            f"--nodelist={host.name}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self._allocation.cpus[host]}",
            # Share the cores with bfrun's own step and the steps of other bfruns.
            "--overlap",
            # bfrun binds the ranks, and they are not MPI processes of Slurm.
            "--cpu-bind=none",
            "--mpi=none",
            # Without this, srun holds back output that does not end in a newline.
            "--unbuffered",
            "--export=ALL",
            "--job-name=bfrun",
        ]

    def close(self) -> None:
        """Do nothing, because connections share nothing."""
