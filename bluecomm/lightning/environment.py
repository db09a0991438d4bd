"""Tells Lightning the facts of this rank, whatever launcher started it."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from lightning.fabric.plugins import ClusterEnvironment

import bluecomm_autoload
from bluecomm.basics import init, is_initialized
from bluecomm.ops.objects import broadcast_object
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.runtime.rendezvous.host import data_addresses


class BluecommEnvironment(ClusterEnvironment):
    """The ranks of bluecomm's world, which is made when Lightning first asks.

    Unlike Lightning's own environments it changes no variable of the launcher.
    """

    def __init__(self) -> None:
        # A source tree has no entry point that tells torch of the backend.
        bluecomm_autoload.register()
        self._meeting: tuple[str, int] | None = None

    @property
    def communicator(self) -> Communicator:
        """The communicator of all ranks."""
        if not is_initialized():
            init()
        return current_communicator()

    @property
    def creates_processes_externally(self) -> bool:
        """Whether a launcher starts the ranks: always."""
        return True

    @property
    def main_address(self) -> str:
        """Address of rank 0, for torch's store. Collective at the first call."""
        return self._where_ranks_meet()[0]

    @property
    def main_port(self) -> int:
        """Port of torch's store. Collective at the first call."""
        return self._where_ranks_meet()[1]

    @staticmethod
    def detect() -> bool:
        """Return False: this environment comes with a strategy of bluecomm."""
        return False

    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.communicator.size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has decided."""

    def global_rank(self) -> int:
        """Return the number of this rank."""
        return self.communicator.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has decided."""

    def local_rank(self) -> int:
        """Return the number of this rank on its machine."""
        return self.communicator.local_rank

    def node_rank(self) -> int:
        """Return the number of this machine."""
        return self.communicator.machine_rank

    def _where_ranks_meet(self) -> tuple[str, int]:
        if self._meeting is None:
            told = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
            own = None if None in told else (told[0], int(told[1] or 0))
            comm = self.communicator
            if comm.rank == 0 and own is None:
                own = _address(comm), _free_port()
            meeting: Any = broadcast_object(own, 0, name="bluecomm.lightning.meeting")
            self._meeting = meeting
        return self._meeting


def _address(comm: Communicator) -> str:
    """Return an address at which the other ranks reach this one."""
    if comm.machine_size == 1:
        return "127.0.0.1"
    pattern = comm.world.config.network_interface
    return data_addresses(pattern, socket.gethostname())[0]


def _free_port() -> int:
    with contextlib.closing(socket.create_server(("", 0))) as server:
        port: int = server.getsockname()[1]
        return port
