"""Chooses the rendezvous of the launcher that started this process."""

from __future__ import annotations

import os
from typing import Any

from bluecomm.config import Config
from bluecomm.runtime.rendezvous.env_store import (
    EnvStoreRendezvous,
    has_env_variables,
    is_from_torchrun,
)
from bluecomm.runtime.rendezvous.mpi_library import launcher_family
from bluecomm.runtime.rendezvous.rendezvous import (
    AgentRendezvous,
    Rendezvous,
    SoloRendezvous,
)


def find_rendezvous(config: Config, communicator: Any = None) -> Rendezvous:
    """Return the rendezvous of this process's launcher.

    The first that applies: ``communicator`` if given, bfrun's agent, torchrun, srun,
    an MPI launcher, the variables of ``env://``, a world of one. They also help a
    step of srun that has neither PMIx nor PMI-2.

    Args:
        config: Settings.
        communicator: A communicator of mpi4py, whose ranks are the world.

    Raises:
        BluecommError: The launcher cannot be reached, or refuses this process.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        MismatchError: The ranks have differing versions or world sizes.
    """
    if communicator is not None:
        from bluecomm.runtime.rendezvous.mpi import MpiRendezvous

        return MpiRendezvous(config, os.environ, communicator)
    if config.agent_socket is not None:
        return AgentRendezvous(config)
    if is_from_torchrun(os.environ):
        return EnvStoreRendezvous(config, os.environ)
    from bluecomm.runtime.rendezvous.slurm import (
        SlurmRendezvous,
        has_manager,
        is_in_step,
    )

    # srun also starts processes of MPI, but rendezvous under srun needs no MPI.
    is_step = is_in_step(os.environ)
    if is_step and config.transport != "mpi":
        if has_env_variables(os.environ) and not has_manager(os.environ):
            return EnvStoreRendezvous(config, os.environ)
        return SlurmRendezvous(config, os.environ)
    if is_step or launcher_family(os.environ) is not None:
        from bluecomm.runtime.rendezvous.mpi import MpiRendezvous

        return MpiRendezvous(config, os.environ)
    if has_env_variables(os.environ):
        return EnvStoreRendezvous(config, os.environ)
    return SoloRendezvous()
