"""How the ranks of one start of a job meet in a key-value store.

A store outlives the ranks that wrote to it, so a restarted rank must never read records
of an earlier start. Rank 0 draws a name for the start and writes it to the store. Every
rank answers under that name, and rank 0 writes a table of the answers, together with
the offer of a secret. A rank that finds its own answer in the table has found its
start. A rank that has read an older name finds no table, or a table without its answer,
and looks again.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

from bluecomm.errors import BluecommError, CommunicationTimeout, MismatchError
from bluecomm.runtime.rendezvous.bootstrap_exchange import check_agreement, host_facts
from bluecomm.runtime.rendezvous.host import machine_identity, process_start
from bluecomm.runtime.rendezvous.secret import SecretHandover

_LOOK_EVERY_S = 0.02
_LAST_READER_S = 5.0


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that the meeting uses."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Return an existing value."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys exist."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return existing values."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which starts at 0, and return its value."""


class StoreMeeting:
    """One rank's side of the meeting of a start.

    Args:
        store: The store that all ranks share.
        prefix: Prefix of all keys.
        rank: This rank.
        size: Number of ranks.
        handover: Carries the secret.
        timeout_s: Seconds to wait for all ranks.
        call: Name of the function that the user calls on each rank, for errors.

    Raises:
        BluecommError: Another process has this rank already, or the secret cannot be
            read.
        CommunicationTimeout: Some ranks did not arrive in time.
        MismatchError: The ranks have differing versions or world sizes.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        rank: int,
        size: int,
        handover: SecretHandover,
        timeout_s: float,
        call: str = "bluecomm.init",
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._size = size
        self._handover = handover
        self._call = call
        self._round = 0
        self._answered: dict[str, Any] = {}
        # The facts of all ranks, by rank.
        self.answers: list[dict[str, Any]] = []
        # The unique name of this start of the job.
        self.start = ""
        self._claim()
        self.secret = (self._lead if rank == 0 else self._follow)(timeout_s)

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        """Publish a record and return those of all ranks; see ``Rendezvous``."""
        number, self._round = self._round, self._round + 1
        keys = self._keys(f"{self.start}/round/{number}")
        self._store.set(keys[self._rank], json.dumps(record))
        self._wait(lambda: self._store.check(keys), timeout_s, lambda: keys)
        self._handover.forget()  # all ranks have arrived, so they have read it
        records = [json.loads(text) for text in self._store.multi_get(keys)]
        self._store.add(self._readers(), 1)
        return records

    def forget_secret(self) -> None:
        """Remove the file of the secret, if this rank made one that still exists."""
        self._handover.forget()

    def await_readers(self) -> None:
        """Wait until all ranks have read all records, at most 5 s."""
        limit = time.monotonic() + _LAST_READER_S
        wanted = self._round * self._size
        while self._store.add(self._readers(), 0) < wanted and time.monotonic() < limit:
            time.sleep(_LOOK_EVERY_S)

    def _readers(self) -> str:
        return f"{self._prefix}/{self.start}/readers"

    def _keys(self, what: str) -> list[str]:
        return [f"{self._prefix}/{what}/{rank}" for rank in range(self._size)]

    def _claim(self) -> None:
        """Check that no other process of this machine has this rank."""
        key = self._keys("claim")[self._rank]
        pid = os.getpid()
        mine = {
            "machine": machine_identity(),
            "pid": pid,
            "start": process_start(pid),
        }
        if self._store.check([key]):
            other = json.loads(self._store.get(key))
            is_another = other["machine"] == mine["machine"] and other != mine
            if is_another and process_start(other["pid"]) == other["start"]:
                raise BluecommError(
                    f"init: process {pid} claims rank {self._rank}, which process "
                    f"{other['pid']} has already. Only one process per rank may call "
                    f"{self._call}. If workers import the script, put its main part "
                    "under if __name__ == '__main__'",
                    operation="init",
                    rank=self._rank,
                )
        self._store.set(key, json.dumps(mine))

    def _lead(self, timeout_s: float) -> bytes:
        """Open a new start, on rank 0, and return its secret."""
        self.start = secrets.token_hex(8)
        self._answer()
        self._store.set(f"{self._prefix}/start", self.start)
        keys = self._answer_keys()
        self._wait(lambda: self._store.check(keys), timeout_s)
        self.answers = [json.loads(text) for text in self._store.multi_get(keys)]
        try:
            check_agreement(0, self._answered, self.answers)
        except MismatchError:
            self._tell("")
            raise
        machines = {answer["machine"] for answer in self.answers}
        secret, offer = self._handover.give(self.start, one_machine=len(machines) == 1)
        self._tell(offer)
        return secret

    def _tell(self, offer: str) -> None:
        """Write the table of this start."""
        table = {"answers": self.answers, "offer": offer}
        self._store.set(f"{self._prefix}/{self.start}/table", json.dumps(table))

    def _follow(self, timeout_s: float) -> bytes:
        """Find the start that rank 0 has opened, and return its secret."""
        key = f"{self._prefix}/start"
        table: dict[str, Any] | None = None

        def look() -> bool:
            nonlocal table
            if not self._store.check([key]):
                return False
            found = self._store.get(key).decode()
            if found != self.start:
                self.start = found
                self._answer()
            table = self._own_table()
            return table is not None

        self._wait(look, timeout_s)
        assert table is not None
        self.answers = table["answers"]
        check_agreement(self._rank, self._answered, self.answers)
        return self._handover.take(self.start, table["offer"])

    def _answer(self) -> None:
        """Answer to the start that this rank has found."""
        self._answered = {"id": secrets.token_hex(8), **host_facts(self._size)}
        key = self._answer_keys()[self._rank]
        self._store.set(key, json.dumps(self._answered))

    def _answer_keys(self) -> list[str]:
        return self._keys(f"{self.start}/answer")

    def _own_table(self) -> dict[str, Any] | None:
        """Return the table of the start; None unless it has this rank's answer."""
        key = f"{self._prefix}/{self.start}/table"
        if not self._store.check([key]):
            return None
        table: dict[str, Any] = json.loads(self._store.get(key))
        # A table of an earlier start, perhaps of fewer ranks, lacks this answer.
        ids = [answer["id"] for answer in table["answers"]]
        return table if self._answered["id"] in ids else None

    def _wait(
        self,
        done: Callable[[], bool],
        timeout_s: float,
        keys: Callable[[], list[str]] | None = None,
    ) -> None:
        """Poll ``done``; at the deadline name the ranks whose key is missing.

        Args:
            done: Returns whether the wait is over.
            timeout_s: Deadline in seconds.
            keys: Returns each rank's key. Default: the keys of the answers.
        """
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() >= deadline:
                raise self._timeout((keys or self._answer_keys)(), timeout_s)
            time.sleep(_LOOK_EVERY_S)

    def _timeout(self, keys: list[str], timeout_s: float) -> CommunicationTimeout:
        silent = [0]  # opens the start, and writes the table when all have answered
        if self.start:
            missing = [not self._store.check([key]) for key in keys]
            silent = [rank for rank, is_missing in enumerate(missing) if is_missing]
        silent = silent or [0]
        return CommunicationTimeout(
            f"init on rank {self._rank}: rank {', '.join(map(str, silent))} "
            f"did not call {self._call} within {timeout_s:g} s",
            operation="init",
            rank=self._rank,
            peers=silent,
            timeout_s=timeout_s,
        )
