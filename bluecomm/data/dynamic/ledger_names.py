"""Names of ledgers on which all ranks agree."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from bluecomm.data.world import DataWorld, check_same


class LedgerNames:
    """Names the ledger of each pass alike on all ranks, and no two ledgers alike.

    The ranks agree before the first pass, and again when they have changed or a state
    was loaded. Between, they count their passes.

    Args:
        user: Name for errors.
    """

    def __init__(self, user: str) -> None:
        self._user = user
        # The identity of the ranks that have agreed, and their name.
        self._agreed: object = None
        self._token = ""
        self._passes = 0

    def forget(self) -> None:
        """Agree anew before the next pass."""
        self._agreed, self._token = None, ""

    def next(self, world: DataWorld, facts: Mapping[str, Any]) -> str:
        """Return the name for the next pass; collective if the ranks agree anew.

        Args:
            world: The ranks.
            facts: Values that must be equal on all of them.

        Raises:
            ValueError: Some facts differ between ranks.
        """
        if self._agreed is not world.identity or not self._token:
            check_same(world, f"{self._user}.load_state_dict", facts)
            token = secrets.token_hex(8)
            self._token = world.gather(token, f"{self._user}.ledger")[0]
            self._agreed, self._passes = world.identity, 0
        self._passes += 1
        return f"{self._token}.{self._passes}"
