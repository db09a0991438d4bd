"""Rendezvous of ranks that share a key-value store of torch.

No agent watches these ranks. A rank that waits for a lost rank learns of it from the
broken link.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from bluecomm.config import Config
from bluecomm.errors import BluecommError
from bluecomm.runtime.rendezvous.bootstrap_exchange import assignment_from
from bluecomm.runtime.rendezvous.rendezvous import AgentlessRendezvous, Assignment
from bluecomm.runtime.rendezvous.secret import SecretHandover
from bluecomm.runtime.rendezvous.store_meeting import Store, StoreMeeting


@dataclasses.dataclass(frozen=True)
class StoreFacts:
    """A rank, and what its rendezvous knows about the store.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        source: The launcher of the ranks, for texts.
        store: Description of the store, for texts.
        call: Name of the function that the user calls on each rank, for texts.
        head: A host of the job; the route to it decides which address is first.
            Default: the host of rank 0.
        prefix: Prefix of all keys.
        shared_folder: A folder that all machines of the job share, if there is one.
        may_run_here: Whether the store may end with this process. Then the process
            waits for the other ranks' last reads before it ends.
    """

    rank: int
    size: int
    source: str
    store: str
    call: str = "bluecomm.init"
    head: str | None = None
    prefix: str = "bluecomm"
    shared_folder: str | None = None
    may_run_here: bool = False


class StoreRendezvous(AgentlessRendezvous):
    """Meets the other ranks in a store.

    Args:
        config: Settings.
        facts: This rank, and facts about the store.
        connect: Returns the store.

    Raises:
        BluecommError: The store cannot be reached, another process has this rank
            already, or the job's secret cannot be read.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        MismatchError: The ranks have differing versions or world sizes.
    """

    def __init__(
        self, config: Config, facts: StoreFacts, connect: Callable[[], Store]
    ) -> None:
        self._config = config
        self._facts = facts
        self._connect = connect
        super().__init__()

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        with self._named():
            return self._meeting.exchange(record, timeout_s)

    def _leave(self) -> None:
        self._meeting.forget_secret()
        if self._facts.may_run_here:
            with contextlib.suppress(RuntimeError):  # the store has ended already
                self._meeting.await_readers()
        # Ends the connections to the store now; a world may keep this object longer.
        del self._meeting, self._connect

    def _meet(self, folder: str) -> Assignment:
        facts, config = self._facts, self._config
        handover = SecretHandover(
            config.secret_file,
            folder,
            channel=facts.store,
            shared_folder=facts.shared_folder,
        )
        try:
            with self._named():
                self._meeting = StoreMeeting(
                    self._connect(),
                    facts.prefix,
                    facts.rank,
                    facts.size,
                    handover,
                    config.start_timeout_s,
                    facts.call,
                )
        except BaseException:
            handover.forget()
            raise
        return assignment_from(
            facts.rank,
            self._meeting.answers,
            job=self._meeting.start,
            secret=self._meeting.secret,
            socket_dir=folder,
            network_interface=config.network_interface,
            head=facts.head or self._meeting.answers[0]["host"],
            source=facts.source,
        )

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Add the description of the store to errors of torch."""
        try:
            yield
        except BluecommError:
            raise
        except RuntimeError as error:  # the class of torch's store errors
            first = str(error).splitlines()[0]
            raise BluecommError(
                f"init on rank {self._facts.rank}: {self._facts.store} cannot be "
                f"reached: {first}",
                operation="init",
                rank=self._facts.rank,
            ) from None
