"""How the ranks of one start of a job meet in a key-value store.

A store outlives the ranks that wrote to it, so a restarted rank must never read records
of an earlier start. Rank 0 draws a name for the start and writes it to the store. Every
rank answers under that name, and rank 0 writes a table of the answers. A rank that
finds its own answer in the table has found its start. A rank that has read an older
name finds no table, or a table without its answer, and looks again.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

from bluecomm.errors import BluecommError, CommunicationTimeout
from bluecomm.runtime.rendezvous.bootstrap_exchange import check_agreement, shared_facts
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
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._size = size
        self._handover = handover
        self._round = 0
        self._answered: dict[str, Any] = {}
        self._claim()
        # The unique name of this start of the job, and the ranks' secret.
        self.start, self.secret = self._lead() if rank == 0 else self._follow(timeout_s)
        if rank == 0:
            self._complete(timeout_s)

    def exchange(self, record: dict[str, Any], timeout_s: float) -> list[Any]:
        """Publish a record and return those of all ranks; see ``Rendezvous``."""
        number, self._round = self._round, self._round + 1
        keys = self._keys(f"{self.start}/round/{number}")
        self._store.set(keys[self._rank], json.dumps(record))
        self._wait(lambda: self._store.check(keys), lambda: keys, timeout_s)
        self._handover.forget()  # all ranks have arrived, so they have read it
        records = [json.loads(text) for text in self._store.multi_get(keys)]
        self._store.add(self._readers(), 1)
        return records

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
                    "bluecomm.init. If workers import the script, put its main part "
                    "under if __name__ == '__main__'",
                    operation="init",
                    rank=self._rank,
                )
        self._store.set(key, json.dumps(mine))

    def _lead(self) -> tuple[str, bytes]:
        """Open a new start, on rank 0."""
        name = secrets.token_hex(8)
        secret, offer = self._handover.give(name)
        self._answer(name)
        self._store.set(
            f"{self._prefix}/start", json.dumps({"name": name, "secret": offer})
        )
        return name, secret

    def _complete(self, timeout_s: float) -> None:
        """Write the table when all ranks have answered, on rank 0."""
        keys = self._keys(f"{self.start}/answer")
        self._wait(lambda: self._store.check(keys), lambda: keys, timeout_s)
        table = [json.loads(text) for text in self._store.multi_get(keys)]
        self._store.set(f"{self._prefix}/{self.start}/table", json.dumps(table))
        check_agreement(self._rank, self._answered, table)

    def _follow(self, timeout_s: float) -> tuple[str, bytes]:
        """Find the start that rank 0 has opened."""
        offer = {"name": "", "secret": ""}
        key = f"{self._prefix}/start"

        def look() -> bool:
            nonlocal offer
            if not self._store.check([key]):
                return False
            found = json.loads(self._store.get(key))
            if found != offer:
                offer = found
                self._answer(offer["name"])
            return self._in_table(offer["name"])

        self._wait(look, lambda: self._keys(f"{offer['name']}/answer"), timeout_s)
        return offer["name"], self._handover.take(offer["name"], offer["secret"])

    def _answer(self, start: str) -> None:
        self._answered = {"id": secrets.token_hex(8), **shared_facts(self._size)}
        key = self._keys(f"{start}/answer")[self._rank]
        self._store.set(key, json.dumps(self._answered))

    def _in_table(self, start: str) -> bool:
        """Return whether the table of a start exists and has this rank's answer."""
        key = f"{self._prefix}/{start}/table"
        if not self._store.check([key]):
            return False
        table = json.loads(self._store.get(key))
        # A table of an earlier start, perhaps of fewer ranks, lacks this answer.
        if self._answered["id"] not in (answer["id"] for answer in table):
            return False
        check_agreement(self._rank, self._answered, table)
        return True

    def _wait(
        self,
        done: Callable[[], bool],
        keys: Callable[[], list[str]],
        timeout_s: float,
    ) -> None:
        """Poll ``done``; at the deadline name the ranks whose key is missing."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() >= deadline:
                pairs = enumerate(keys())
                silent = [rank for rank, key in pairs if not self._store.check([key])]
                # All ranks have answered, but rank 0 has not written the table.
                silent = silent or [0]
                raise CommunicationTimeout(
                    f"init on rank {self._rank}: rank {', '.join(map(str, silent))} "
                    f"did not call bluecomm.init within {timeout_s:g} s",
                    operation="init",
                    rank=self._rank,
                    peers=silent,
                    timeout_s=timeout_s,
                )
            time.sleep(_LOOK_EVERY_S)
