"""The world of a plain ``srun``: ranks meet through Slurm's PMIx or PMI-2."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from typing import Any

from bluecomm._version import __version__
from bluecomm.config import Config
from bluecomm.errors import BluecommError, MismatchError
from bluecomm.runtime.host import data_addresses, machine_identity, private_folder
from bluecomm.runtime.layout import layout_of
from bluecomm.runtime.pmi2 import Pmi2
from bluecomm.runtime.pmix import Pmix
from bluecomm.runtime.process_manager import ProcessManager
from bluecomm.runtime.rendezvous import Place, Rendezvous

# Set by the launchers of MPIs, whose daemons srun may have started: their ranks find
# Slurm's variables of the daemon in their environment.
_MPI_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")


def is_in_step(environ: Mapping[str, str]) -> bool:
    """Return whether ``srun`` started this process as one of several tasks.

    False in a batch script and in an interactive shell of one task.
    """
    return (
        "SLURM_STEP_ID" in environ
        and "SLURM_PROCID" in environ
        and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
        and not any(name in environ for name in _MPI_LAUNCHERS)
    )


class SlurmRendezvous(Rendezvous):
    """Meets the other tasks of a Slurm step.

    Args:
        config: Settings.
        environ: Environment of this process.

    Raises:
        BluecommError: The step has neither PMIx nor PMI-2, or it fails.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        MismatchError: The ranks have differing versions.
    """

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self._rank = int(environ["SLURM_PROCID"])
        self._size = int(environ["SLURM_STEP_NUM_TASKS"])
        self._round = 0
        self._manager = _find_manager(self._rank, config.start_timeout_s, environ)
        self._folder = private_folder()
        try:
            self._place = self._meet(config, environ)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def place(self) -> Place:
        return self._place

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        number, self._round = self._round, self._round + 1
        key = f"bluecomm.{number}"
        self._manager.put_text(key, json.dumps(record))
        self._manager.fence(timeout_s)
        return [
            json.loads(self._manager.get_text(rank, key)) for rank in range(self._size)
        ]

    def goodbye(self) -> None:
        pass  # Slurm looks at exit codes only

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._manager.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _meet(self, config: Config, environ: Mapping[str, str]) -> Place:
        mine: dict[str, Any] = {"version": __version__, "machine": machine_identity()}
        if self._rank == 0:
            mine["job"] = secrets.token_hex(8)
            mine["secret"] = secrets.token_hex(32)
        table = self.exchange(mine, config.start_timeout_s)
        others = [i for i, it in enumerate(table) if it["version"] != __version__]
        if others:
            raise MismatchError.describe(
                f"bluecomm of rank {others[0]} is another one",
                operation="init",
                rank=self._rank,
                peers=others,
                expected=__version__,
                got=str(table[others[0]]["version"]),
                remedy="All ranks must start with the same.",
            )
        layout = layout_of([answer["machine"] for answer in table])
        step = f"{environ.get('SLURM_JOB_ID', '?')}.{environ['SLURM_STEP_ID']}"
        head = environ.get("SLURM_LAUNCH_NODE_IPADDR", "localhost")
        return Place(
            rank=self._rank,
            size=self._size,
            local_rank=layout.local_rank(self._rank),
            local_size=layout.local_size(self._rank),
            machine_rank=layout.machine_of[self._rank],
            machine_size=layout.machine_size,
            job=table[0]["job"],
            epoch=0,
            secret=bytes.fromhex(table[0]["secret"]),
            host=socket.gethostname(),
            machine=mine["machine"],
            socket_dir=self._folder,
            addresses=data_addresses(config.network_interface, head),
            source=f"srun, step {step}, {self._manager.name}",
        )


def _find_manager(
    rank: int, timeout_s: float, environ: Mapping[str, str]
) -> ProcessManager:
    if "PMIX_RANK" in environ:
        return Pmix(rank)
    if environ.get("PMI_FD", "").isdigit():
        job = environ.get("PMI_JOBID", "")
        return Pmi2(int(environ["PMI_FD"]), rank, job, timeout_s)
    raise BluecommError(
        f"init on rank {rank}: srun started this process as one of "
        f"{environ['SLURM_STEP_NUM_TASKS']} tasks, without a way for them to meet; "
        "use srun --mpi=pmix (or --mpi=pmi2), or run bfrun without srun in the "
        "allocation",
        operation="init",
        rank=rank,
    )
