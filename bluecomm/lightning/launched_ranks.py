"""The part of both strategies that knows the ranks of the launcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bluecomm.lightning.environment import BluecommEnvironment


class LaunchedRanks:
    """Takes the numbers of ranks and machines from bluecomm's world.

    To be put before Lightning's ``DDPStrategy`` among the bases of a strategy.
    """

    cluster_environment: Any
    _cpus: list[torch.device] | None = None

    @property
    def root_device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """A CPU for each rank of this machine, once Lightning has set its own."""
        return self._cpus

    @parallel_devices.setter
    def parallel_devices(self, devices: Sequence[torch.device] | None) -> None:
        """Take the devices that Lightning chose, if they fit the launcher's ranks.

        Raises:
            ValueError: They are no CPUs, or there are more or fewer than ranks.
        """
        if not devices:
            return
        kinds = {torch.device(device).type for device in devices}
        if kinds != {"cpu"}:
            raise ValueError(
                f"{type(self).__name__} trains on CPUs, but Lightning chose devices of "
                f"type {', '.join(sorted(kinds))}; pass accelerator='cpu'"
            )
        # Without the argument, Lightning chooses one CPU.
        local_size = self._ranks().communicator.local_size
        if len(devices) not in (1, local_size):
            raise ValueError(_mismatch("devices", len(devices), local_size, "rank"))
        self._cpus = [self.root_device] * local_size

    @property
    def num_processes(self) -> int:
        """Number of ranks on this machine."""
        return self._ranks().communicator.local_size

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return self._ranks().communicator.machine_size

    @num_nodes.setter
    def num_nodes(self, count: int) -> None:
        """Check the number that Lightning was given.

        Raises:
            ValueError: The launcher has started another number of machines.
        """
        machines = self.num_nodes
        if count not in (1, machines):
            raise ValueError(_mismatch("num_nodes", count, machines, "machine"))

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Arguments of the samplers that Lightning makes: all ranks, and this one."""
        comm = self._ranks().communicator
        return {"num_replicas": comm.size, "rank": comm.rank}

    def _configure_launcher(self) -> None:
        """Start no processes: the launcher has."""

    def _ranks(self) -> BluecommEnvironment:
        environment: BluecommEnvironment = self.cluster_environment
        return environment


def ranks_of(environment: object) -> BluecommEnvironment:
    """Return the environment that a strategy was given, or a new one.

    Raises:
        TypeError: It is an environment of Lightning.
    """
    if environment is None:
        return BluecommEnvironment()
    if not isinstance(environment, BluecommEnvironment):
        raise TypeError(
            "cluster_environment must be a bluecomm.lightning.BluecommEnvironment, got "
            f"{type(environment).__name__}; leave it out, since bluecomm knows the "
            "ranks of bfrun, torchrun, srun and mpirun"
        )
    return environment


def _mismatch(argument: str, given: int, had: int, what: str) -> str:
    where = "on this machine" if what == "rank" else "in this job"
    return (
        f"{argument}={given}, but the launcher has started {had} {what}"
        f"{'' if had == 1 else 's'} {where}; leave {argument} out: the launcher "
        "decides (bfrun -np 4 python train.py, torchrun, srun or mpirun)"
    )
