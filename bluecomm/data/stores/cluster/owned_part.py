"""The part of the cache that this machine owns, as other ranks ask for it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

from bluecomm.data.stores.cluster.claims import Claimant, ClaimOutcome, Claims
from bluecomm.data.stores.cluster.messages import CacheMessage, Kind
from bluecomm.data.stores.memory.memory_store import MemoryStore


class Answers(Protocol):
    """Sends answers."""

    def __call__(self, rank: int, message: CacheMessage, value: Any = None) -> None:
        """Send an answer to a rank, or to this one, and the value that follows it."""


class OwnedPart:
    """Acts on requests as the owner of their keys. Not thread-safe.

    Args:
        machine: The number of this machine.
        machine_of: Machine of each rank.
        memory: The memory of this machine.
        limit_s: Seconds after which a rank that waits for a value may load it, too.
        answer: Sends answers.
    """

    def __init__(
        self,
        machine: int,
        machine_of: Mapping[int, int],
        memory: MemoryStore,
        limit_s: float,
        answer: Answers,
    ) -> None:
        self._machine = machine
        self._machine_of = machine_of
        self._memory = memory
        self._answer = answer
        self.claims = Claims(machine_of, limit_s)

    def serve(self, rank: int, message: CacheMessage, value: Any = None) -> None:
        """Act on a request.

        Args:
            rank: The rank that asks.
            message: FIND, CLAIM, KEEP or RELEASE.
            value: Buffer of the value that came with it; None if it was lost.
        """
        if message.kind is Kind.FIND:
            if not self._give(rank, message):
                self._answer(rank, message.answer(Kind.MISSING))
        elif message.kind is Kind.CLAIM:
            if self._give(rank, message):
                return
            is_granted = self.claims.claim(Claimant(rank, message))
            kind = Kind.LOAD if is_granted else Kind.WAIT
            self._answer(rank, message.answer(kind))
        else:
            if value is not None:
                with contextlib.suppress(OSError, ValueError):
                    cost_s = message.cost_ns * 1e-9
                    self._memory.put_flat(message.key, [value], cost_s)
            self._settle(message.key, rank)
            if message.kind is Kind.KEEP:
                self._answer(rank, message.answer(Kind.DONE))

    def lose(self, rank: int) -> None:
        """End the claims and the waits of a rank."""
        self.claims.forget(rank)
        for key in self.claims.keys_of(rank):
            self._settle(key, rank)

    def end_waits(self) -> None:
        """Let those load that have waited for the limit."""
        self._pass_on(self.claims.take_late())

    def _give(self, rank: int, message: CacheMessage) -> bool:
        """Answer with the value of a key, if there is one."""
        key = message.key
        if self._machine_of[rank] == self._machine:
            if not self._memory.has(key):
                return False
            self._answer(rank, message.answer(Kind.FOUND))
            return True
        flat = self._memory.get_flat(key)
        if flat is None:
            return False
        self._answer(rank, message.answer(Kind.FOUND, flat.nbytes), flat)
        return True

    def _settle(self, key: int, rank: int) -> None:
        """End the claim of a rank."""
        is_found = self._memory.has(key)
        self._pass_on(self.claims.end(key, rank, is_found=is_found))

    def _pass_on(self, outcomes: list[ClaimOutcome]) -> None:
        for (rank, request), is_found in outcomes:
            if not (is_found and self._give(rank, request)):
                self._answer(rank, request.answer(Kind.LOAD))
