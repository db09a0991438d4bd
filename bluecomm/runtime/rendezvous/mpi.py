"""Rendezvous under an MPI launcher: the ranks meet on a communicator of MPI.

bfrun's agents do not exist here: mpirun watches the ranks and ends all of them when one
dies. Rank 0 draws the secret, which travels inside MPI like the records.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bluecomm.config import Config
from bluecomm.errors import BluecommError, CommunicationTimeout
from bluecomm.runtime.rendezvous.bootstrap_exchange import (
    assignment_from,
    bootstrap_record,
    check_agreement,
)
from bluecomm.runtime.rendezvous.mpi_library import open_mpi
from bluecomm.runtime.rendezvous.mpi_start import end_mpi, expect_unfinalized, start_mpi
from bluecomm.runtime.rendezvous.rendezvous import AgentlessRendezvous, Assignment

if TYPE_CHECKING:
    from bluecomm._native import MpiSession

_log = logging.getLogger("bluecomm")


class MpiRendezvous(AgentlessRendezvous):
    """Meets the other ranks of a communicator of MPI.

    The side that initialized MPI ends it: this object, or the program (mpi4py).

    Args:
        config: Settings.
        environ: Environment of this process.
        communicator: A communicator of mpi4py. Default: that of all processes.

    Raises:
        BluecommError: No libmpi fits, or MPI has ended.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        MismatchError: The ranks have differing versions of bluecomm.
        TypeError: ``communicator`` is not a communicator of mpi4py.
        ValueError: ``communicator`` is the null communicator.
    """

    def __init__(
        self, config: Config, environ: Mapping[str, str], communicator: Any = None
    ) -> None:
        handle = None if communicator is None else fortran_handle(communicator)
        self._library = open_mpi(config.mpi_lib, environ)
        self._config = config
        self._ends_mpi = start_mpi(self._library, environ, config.start_timeout_s)
        self._threads = self._library.threads
        if not self._library.on_main_thread and self._threads_are_few():
            raise BluecommError(
                f"init: MPI was started with thread level '{self._threads}', "
                "so only the thread that started it may call it, and this is another "
                "thread; call bluecomm.init on that thread, or start MPI with "
                "MPI_THREAD_MULTIPLE",
                operation="init",
            )
        self._session = self._open_session(handle, config.start_timeout_s)
        super().__init__()
        if self._threads_are_few() and self._assignment.rank == 0:
            _log.warning(
                "MPI was started with thread level '%s', but the transport over MPI "
                "needs 'serialized' or 'multiple': other machines are reached by TCP",
                self._threads,
            )

    @property
    def threads(self) -> str:
        """MPI's thread level: single, funneled, serialized or multiple."""
        return self._threads

    @property
    def mpi(self) -> MpiSession | None:
        expect_unfinalized(self._library)
        return None if self._threads_are_few() else self._session

    @property
    def outlives_failure(self) -> bool:
        # Else the program's MPI_Finalize would wait for the other ranks while they
        # wait for this one. If the program never calls it, mpirun ends the job.
        return not self._ends_mpi

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        expect_unfinalized(self._library)
        text = json.dumps(record).encode()
        records, silent = self._session.exchange(text, timeout_s)
        if silent:
            raise self._timeout(silent, timeout_s)
        return [json.loads(one) for one in records]

    def _leave(self) -> None:
        if self._ends_mpi and not self._library.finalized:
            end_mpi(self._library, self._assignment.rank, self._config.start_timeout_s)

    def _threads_are_few(self) -> bool:
        return self._threads in ("single", "funneled")

    def _open_session(self, handle: int | None, timeout_s: float) -> MpiSession:
        try:
            opened = self._library.open_session(handle, timeout_s)
        except ValueError as error:
            raise ValueError(
                f"init: {error}; ranks outside of a communicator must not call init"
            ) from None
        if isinstance(opened, list):
            raise self._timeout(opened, timeout_s)
        return opened

    def _meet(self, folder: str) -> Assignment:
        rank = self._session.rank
        mine = bootstrap_record(rank, self._session.size)
        everyone = self.exchange(mine, self._config.start_timeout_s)
        check_agreement(rank, mine, everyone)
        return assignment_from(
            rank,
            everyone,
            job=everyone[0]["job"],
            secret=bytes.fromhex(everyone[0]["secret"]),
            socket_dir=folder,
            network_interface=self._config.network_interface,
            head=everyone[0]["host"],
            source=" ".join(self._library.version.partition(",")[0].split()),
        )

    def _timeout(self, silent: list[int], timeout_s: float) -> CommunicationTimeout:
        names = ", ".join(map(str, silent))
        return CommunicationTimeout(
            f"init: ranks {names} of the MPI communicator did not call bluecomm.init "
            f"within {timeout_s:g} s; do they run the same program, with bluecomm "
            "installed? Every rank of the communicator must call it",
            operation="init",
            peers=silent,
            timeout_s=timeout_s,
        )


def fortran_handle(communicator: Any) -> int:
    """Return the Fortran handle of mpi4py's communicator, which every MPI understands.

    Raises:
        TypeError: The argument is not a communicator of mpi4py.
    """
    try:
        return int(communicator.py2f())
    except (AttributeError, TypeError):
        raise TypeError(
            "init: comm must be a communicator of mpi4py, "
            f"got {type(communicator).__name__}"
        ) from None
