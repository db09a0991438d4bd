"""Rendezvous under torchrun: the ranks meet in the store that torchrun runs.

bfrun's agents do not exist here: torchrun watches the ranks and ends all of them when
one dies. A rank that waits for a lost rank learns of it from the broken link.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bluecomm.config import Config
from bluecomm.errors import BluecommError
from bluecomm.runtime.rendezvous.host import data_addresses, machine_identity
from bluecomm.runtime.rendezvous.rendezvous import AgentlessRendezvous, Assignment
from bluecomm.runtime.rendezvous.secret import SecretHandover
from bluecomm.runtime.rendezvous.store_meeting import StoreMeeting

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class TorchrunVariables:
    """The variables that torchrun sets for a rank."""

    run_id: str
    restart_count: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    machine_rank: int
    machine_size: int
    store_host: str
    store_port: int
    has_store: bool

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> TorchrunVariables:
        """Parse the variables.

        Raises:
            BluecommError: A variable is missing or is not a number.
        """

        def number(name: str) -> int:
            try:
                return int(environ[name])
            except (KeyError, ValueError):
                raise BluecommError(
                    f"init: TORCHELASTIC_RUN_ID says that torchrun started this "
                    f"process, but {name} is {environ.get(name, 'not set')!r}; start "
                    "the script with torchrun, or unset TORCHELASTIC_RUN_ID",
                    operation="init",
                ) from None

        return cls(
            run_id=environ["TORCHELASTIC_RUN_ID"],
            restart_count=number("TORCHELASTIC_RESTART_COUNT"),
            rank=number("RANK"),
            size=number("WORLD_SIZE"),
            local_rank=number("LOCAL_RANK"),
            local_size=number("LOCAL_WORLD_SIZE"),
            machine_rank=number("GROUP_RANK"),
            machine_size=number("GROUP_WORLD_SIZE"),
            store_host=environ.get("MASTER_ADDR", "localhost"),
            store_port=number("MASTER_PORT"),
            has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


class TorchrunRendezvous(AgentlessRendezvous):
    """Meets the other ranks of a torchrun job in its TCPStore.

    Args:
        config: Settings.
        environ: Environment of this process.

    Raises:
        BluecommError: The store cannot be reached, another process has this rank
            already, or the job's secret cannot be read.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        MismatchError: The ranks have differing versions or world sizes.
    """

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._config = config
        self._told = told = TorchrunVariables.from_environment(environ)
        # If torchrun runs no store itself, rank 0 does.
        self._runs_store = told.rank == 0 and not told.has_store
        super().__init__()

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        with _named(self._told):
            return self._meeting.exchange(record, timeout_s)

    def _leave(self) -> None:
        if self._runs_store:
            self._meeting.await_readers()

    def _meet(self, folder: str) -> Assignment:
        told, timeout_s = self._told, self._config.start_timeout_s
        handover = SecretHandover(
            self._config.secret_file,
            folder,
            one_machine=told.local_size == told.size,
            channel=f"torchrun's store at {told.store_host}:{told.store_port}",
        )
        with _named(told):
            self._meeting = StoreMeeting(
                _connect(told, timeout_s),
                f"bluecomm/{told.run_id}/{told.restart_count}",
                told.rank,
                told.size,
                handover,
                timeout_s,
            )
        return Assignment(
            rank=told.rank,
            size=told.size,
            local_rank=told.local_rank,
            local_size=told.local_size,
            machine_rank=told.machine_rank,
            machine_size=told.machine_size,
            job=self._meeting.start,
            epoch=0,
            secret=self._meeting.secret,
            host=socket.gethostname(),
            machine=machine_identity(),
            socket_dir=folder,
            addresses=data_addresses(self._config.network_interface, told.store_host),
            source=f"torchrun, run {told.run_id}, restart {told.restart_count}",
        )


def _connect(told: TorchrunVariables, timeout_s: float) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        told.store_host,
        told.store_port,
        told.size,
        is_master=told.rank == 0 and not told.has_store,
        timeout=datetime.timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=True,
    )


@contextlib.contextmanager
def _named(told: TorchrunVariables) -> Iterator[None]:
    """Add the address of the store to errors of torch."""
    try:
        yield
    except BluecommError:
        raise
    except RuntimeError as error:  # the class of torch's store errors
        first = str(error).splitlines()[0]
        raise BluecommError(
            f"init on rank {told.rank}: torchrun's store at {told.store_host}:"
            f"{told.store_port} (MASTER_ADDR, MASTER_PORT) cannot be reached: {first}",
            operation="init",
            rank=told.rank,
        ) from None
