"""Rendezvous in the store of torch that environment variables name.

torchrun sets the variables and usually runs the store. Other launchers, and users, set
the four of ``env://``; then rank 0 runs the store.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bluecomm.config import Config
from bluecomm.errors import BluecommError
from bluecomm.runtime.rendezvous.store import StoreFacts, StoreRendezvous

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"
_OF_ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_from_torchrun(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun started this process."""
    return _OF_TORCHRUN in environ


def has_env_variables(environ: Mapping[str, str]) -> bool:
    """Return whether the variables of ``env://`` name a world of several ranks."""
    return all(name in environ for name in _OF_ENV) and environ["WORLD_SIZE"] != "1"


@dataclasses.dataclass(frozen=True)
class StoreVariables:
    """The values of the variables; ``run`` is empty unless torchrun set them."""

    run: str
    restart_count: int
    rank: int
    size: int
    host: str
    port: int
    has_store: bool

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> StoreVariables:
        """Parse the variables.

        Raises:
            BluecommError: A variable is missing or is not a number.
        """
        run = environ.get(_OF_TORCHRUN)
        if run is None:
            said = f"{', '.join(_OF_ENV)} are set, as for init_method='env://'"
            remedy = "correct it, or unset WORLD_SIZE"
        else:
            said = f"{_OF_TORCHRUN} says that torchrun started this process"
            remedy = f"start the script with torchrun, or unset {_OF_TORCHRUN}"

        def number(name: str) -> int:
            try:
                return int(environ[name])
            except (KeyError, ValueError):
                raise BluecommError(
                    f"init: {said}, but {name} is {environ.get(name, 'not set')!r}; "
                    f"{remedy}",
                    operation="init",
                ) from None

        return cls(
            run=run or "",
            restart_count=0 if run is None else number("TORCHELASTIC_RESTART_COUNT"),
            rank=number("RANK"),
            size=number("WORLD_SIZE"),
            host=environ.get("MASTER_ADDR", "localhost"),
            port=number("MASTER_PORT"),
            has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def runs_store(self) -> bool:
        """Whether this process runs the store."""
        return self.rank == 0 and not self.has_store

    def facts(self) -> StoreFacts:
        """Return what ``StoreRendezvous`` has to know."""
        source, owner = "env://", "the store"
        if self.run:
            source = f"torchrun, run {self.run}, restart {self.restart_count}"
            owner = "torchrun's store"
        return StoreFacts(
            rank=self.rank,
            size=self.size,
            source=source,
            store=f"{owner} at {self.host}:{self.port} (MASTER_ADDR, MASTER_PORT)",
            head=self.host,
            prefix=f"bluecomm/{self.run}/{self.restart_count}",
            may_run_here=self.runs_store,
        )


class EnvStoreRendezvous(StoreRendezvous):
    """Meets the other ranks in the store that the environment names.

    Args:
        config: Settings.
        environ: Environment of this process.

    Raises:
        BluecommError: As ``StoreRendezvous``, or a variable is missing or wrong.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        MismatchError: The ranks have differing versions or world sizes.
    """

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        told = StoreVariables.from_environment(environ)
        super().__init__(
            config, told.facts(), lambda: _connect(told, config.start_timeout_s)
        )


def _connect(told: StoreVariables, timeout_s: float) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        told.host,
        told.port,
        told.size,
        is_master=told.runs_store,
        timeout=datetime.timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=True,
    )
