"""The world that MPI's launcher made: ranks meet on a communicator of MPI.

There is no agent of bfrun: mpirun watches the ranks and ends them all when one dies.
The secret is drawn by rank 0 and travels inside MPI, as do the records.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bluecomm._version import __version__
from bluecomm.config import Config
from bluecomm.errors import BluecommError, CommunicationTimeout, MismatchError
from bluecomm.runtime.host import data_addresses, machine_identity, private_folder
from bluecomm.runtime.layout import layout_of
from bluecomm.runtime.mpi_library import open_mpi
from bluecomm.runtime.mpi_start import end_mpi, start_mpi
from bluecomm.runtime.rendezvous import Place, Rendezvous

if TYPE_CHECKING:
    from bluecomm._native import MpiSession

_log = logging.getLogger("bluecomm")


class MpiRendezvous(Rendezvous):
    """Meets the other ranks of a communicator of MPI.

    Who initializes MPI ends it: this object if it did, else the program (mpi4py).

    Args:
        config: Settings.
        environ: Environment of this process.
        communicator: One of mpi4py's. Default: that of all processes.

    Raises:
        BluecommError: No libmpi fits, or MPI has ended.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        MismatchError: The ranks have differing versions of bluecomm.
        TypeError: ``communicator`` is none of mpi4py's.
        ValueError: It is the null communicator.
    """

    def __init__(
        self, config: Config, environ: Mapping[str, str], communicator: Any = None
    ) -> None:
        handle = None if communicator is None else fortran_handle(communicator)
        self._owner = os.getpid()
        self._library = open_mpi(config.mpi_lib, environ)
        self._start_timeout_s = config.start_timeout_s
        self._ends_mpi = start_mpi(self._library, environ, config.start_timeout_s)
        if not self._library.on_main_thread and self._threads_are_few():
            raise BluecommError(
                f"init: MPI was started with thread level '{self._library.threads}', "
                "so only the thread that started it may call it, and this is another "
                "one; call bluecomm.init there, or start MPI with MPI_THREAD_MULTIPLE",
                operation="init",
            )
        self._session = self._open_session(handle, config.start_timeout_s)
        self._folder = private_folder()
        try:
            self._place = self._find_place(config)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        if self._threads_are_few() and self._place.rank == 0:
            _log.warning(
                "MPI was started with thread level '%s', and its transport needs "
                "'serialized' or 'multiple': other machines are reached by TCP",
                self._library.threads,
            )

    @property
    def place(self) -> Place:
        return self._place

    @property
    def threads(self) -> str:
        """MPI's thread level: single, funneled, serialized or multiple."""
        return self._library.threads

    @property
    def mpi(self) -> MpiSession | None:
        return None if self._threads_are_few() else self._session

    @property
    def outlives_failure(self) -> bool:
        # The program's own MPI_Finalize waits for the other ranks, which would wait for
        # this one. Where it does not come, mpirun ends the job.
        return not self._ends_mpi

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        text = json.dumps(record).encode()
        records, silent = self._session.exchange(text, timeout_s)
        if silent:
            raise self._timeout(silent, timeout_s)
        return [json.loads(one) for one in records]

    def goodbye(self) -> None:
        pass  # mpirun looks at exit codes, and whether MPI was ended

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._ends_mpi and not self._library.finalized:
            end_mpi(self._library, self._place.rank, self._start_timeout_s)

    def _threads_are_few(self) -> bool:
        return self._library.threads in ("single", "funneled")

    def _open_session(self, handle: int | None, timeout_s: float) -> MpiSession:
        try:
            opened = self._library.open_session(handle, timeout_s)
        except ValueError as error:
            raise ValueError(
                f"init: {error}; ranks outside of it call no init"
            ) from None
        if isinstance(opened, list):
            raise self._timeout(opened, timeout_s)
        return opened

    def _find_place(self, config: Config) -> Place:
        rank = self._session.rank
        mine = {
            "version": __version__,
            "machine": machine_identity(),
            "host": socket.gethostname(),
            "job": secrets.token_hex(8),
            "secret": secrets.token_hex(32) if rank == 0 else "",
        }
        everyone = self.exchange(mine, config.start_timeout_s)
        _check_versions(rank, [one["version"] for one in everyone])
        layout = layout_of([one["machine"] for one in everyone])
        return Place(
            rank=rank,
            size=self._session.size,
            local_rank=layout.local_rank(rank),
            local_size=layout.local_size(rank),
            machine_rank=layout.machine_of[rank],
            machine_size=layout.machine_size,
            job=everyone[0]["job"],
            epoch=0,
            secret=bytes.fromhex(everyone[0]["secret"]),
            host=str(mine["host"]),
            machine=str(mine["machine"]),
            socket_dir=self._folder,
            addresses=data_addresses(config.network_interface, everyone[0]["host"]),
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
    """Return the handle of mpi4py's communicator, which all MPI libraries understand.

    Raises:
        TypeError: It is none.
    """
    try:
        return int(communicator.py2f())
    except (AttributeError, TypeError):
        raise TypeError(
            "init: comm must be a communicator of mpi4py, "
            f"got {type(communicator).__name__}"
        ) from None


def _check_versions(rank: int, versions: list[str]) -> None:
    others = [other for other, version in enumerate(versions) if version != __version__]
    if others:
        raise MismatchError.describe(
            f"bluecomm of rank {others[0]} is another version",
            operation="init",
            rank=rank,
            peers=others,
            expected=__version__,
            got=versions[others[0]],
            remedy="Install the same version for all ranks.",
        )
