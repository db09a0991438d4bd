"""Rendezvous under plain ``srun``: ranks meet through Slurm's PMIx or PMI-2."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bluecomm.config import Config
from bluecomm.errors import BluecommError
from bluecomm.runtime.rendezvous.bootstrap_exchange import (
    assignment_from,
    bootstrap_record,
    check_agreement,
)
from bluecomm.runtime.rendezvous.pmi2 import Pmi2
from bluecomm.runtime.rendezvous.pmix import Pmix
from bluecomm.runtime.rendezvous.process_manager import ProcessManager
from bluecomm.runtime.rendezvous.rendezvous import AgentlessRendezvous, Assignment

# Variables of MPI launchers. srun may have started their daemons, whose ranks then
# inherit Slurm's variables.
_MPI_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")


def is_in_step(environ: Mapping[str, str]) -> bool:
    """Return whether ``srun`` started this process as one of several tasks.

    Returns False in a batch script and in an interactive shell of one task.
    """
    return (
        "SLURM_STEP_ID" in environ
        and "SLURM_PROCID" in environ
        and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
        and not any(name in environ for name in _MPI_LAUNCHERS)
    )


def has_manager(environ: Mapping[str, str]) -> bool:
    """Return whether the tasks of this step can meet through PMIx or PMI-2."""
    return "PMIX_RANK" in environ or environ.get("PMI_FD", "").isdigit()


class SlurmRendezvous(AgentlessRendezvous):
    """Meets the other tasks of a Slurm step.

    Args:
        config: Settings.
        environ: Environment of this process.

    Raises:
        BluecommError: The step has neither PMIx nor PMI-2, or the protocol fails.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        MismatchError: The ranks have differing versions or world sizes.
    """

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ
        self._rank = _number("SLURM_PROCID", environ)
        self._size = _number("SLURM_STEP_NUM_TASKS", environ)
        self._round = 0
        self._manager = _find_manager(self._rank, config.start_timeout_s, environ)
        super().__init__()

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        return list(self._exchange(record, timeout_s))

    def _exchange(self, record: dict[str, Any], timeout_s: float) -> Iterator[Any]:
        """Publish a record and yield the records of all ranks, one after the other."""
        number, self._round = self._round, self._round + 1
        key = f"bluecomm.{number}"
        self._manager.put_text(key, json.dumps(record))
        self._manager.fence(timeout_s)
        for rank in range(self._size):
            yield json.loads(self._manager.get_text(rank, key))

    def _leave(self) -> None:
        self._manager.close()

    def _meet(self, folder: str) -> Assignment:
        mine = bootstrap_record(self._rank, self._size)
        answers: list[dict[str, Any]] = []
        for answer in self._exchange(mine, self._config.start_timeout_s):
            answers.append(answer)
            if answer["size"] != self._size:
                break  # more records may not exist
        check_agreement(self._rank, mine, answers)
        step = f"{self._environ.get('SLURM_JOB_ID', '?')}"
        step += f".{self._environ['SLURM_STEP_ID']}"
        return assignment_from(
            self._rank,
            answers,
            job=answers[0]["job"],
            secret=bytes.fromhex(answers[0]["secret"]),
            socket_dir=folder,
            network_interface=self._config.network_interface,
            head=self._environ.get("SLURM_LAUNCH_NODE_IPADDR", "localhost"),
            source=f"srun, step {step}, {self._manager.name}",
        )


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ[name]
    if not text.isdecimal():
        raise BluecommError(
            f"init: this process looks like a task of a Slurm step, but {name} is "
            f"{text!r}, not a number; start the script with srun, or unset "
            "SLURM_STEP_ID",
            operation="init",
        )
    return int(text)


def _find_manager(
    rank: int, timeout_s: float, environ: Mapping[str, str]
) -> ProcessManager:
    if "PMIX_RANK" in environ:
        return Pmix(rank, timeout_s)
    if environ.get("PMI_FD", "").isdigit():
        job = environ.get("PMI_JOBID", "")
        return Pmi2(int(environ["PMI_FD"]), rank, job, timeout_s)
    raise BluecommError(
        f"init on rank {rank}: srun started this process as one of "
        f"{environ['SLURM_STEP_NUM_TASKS']} tasks, without a way for them to meet; "
        "use srun --mpi=pmix (or --mpi=pmi2), or run bfrun without srun in the "
        "allocation, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        operation="init",
        rank=rank,
    )
