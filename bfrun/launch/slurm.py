"""Starts agents as steps of a Slurm job; srun carries their input and output."""

from __future__ import annotations

from collections.abc import Sequence

from bfrun.allocation import Allocation
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher, ProcessConnection
from bfrun.launch.local import LocalConnection


class SlurmLauncher(Launcher):
    """Starts each agent by an ``srun`` of its own: one task, all cores of its host.

    Args:
        allocation: The job that this process is in.
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
                f"{error}; put Slurm's commands on PATH, or start elsewhere with "
                "--launcher local or -H"
            ) from error

    def command(self, host: Host) -> list[str]:
        """Return the srun that starts one program on ``host``."""
        return [
            "srun",
            f"--jobid={self._allocation.job}",
            f"--nodelist={host.name}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self._allocation.cpus[host]}",
            # Beside the step that runs bfrun, and beside other bfruns.
            "--overlap",
            # Ranks are bound by bfrun, and are no MPI processes of Slurm's.
            "--cpu-bind=none",
            "--mpi=none",
            # Else srun keeps what does not end in a newline.
            "--unbuffered",
            "--export=ALL",
            "--job-name=bfrun",
        ]

    def close(self) -> None:
        """Nothing is shared between the links."""
