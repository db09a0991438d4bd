"""Key-value exchange through the process manager that started the ranks.

Two protocols, both of MPI's world, neither of which needs an MPI: PMI-2, lines of text
over an inherited socket (`pmi2.py`), and PMIx, a library (`pmix.py`).
"""

from __future__ import annotations

import abc
import base64

from bluecomm.errors import BluecommError, CommunicationTimeout

# A value may have 1024 bytes with its end (PMI2_MAX_VALLEN).
_PART_NBYTES = 900


class ProcessManager(abc.ABC):
    """What a rank puts is what all ranks get once all have come to the fence.

    Args:
        rank: This rank.
    """

    name: str
    # What to do when it fails.
    remedy: str

    def __init__(self, rank: int) -> None:
        self._rank = rank

    @abc.abstractmethod
    def put(self, key: str, value: str) -> None:
        """Publish an ASCII value of at most 900 bytes under this rank's ``key``."""

    @abc.abstractmethod
    def fence(self, timeout_s: float) -> None:
        """Wait until all ranks have come here.

        Raises:
            CommunicationTimeout: Some have not in time.
        """

    @abc.abstractmethod
    def get(self, rank: int, key: str) -> str:
        """Return what a rank has put before the last fence."""

    @abc.abstractmethod
    def close(self) -> None:
        """Tell the process manager that this rank needs it no more."""

    def put_text(self, key: str, text: str) -> None:
        """Publish a text of any length and any letters."""
        data = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        parts = [
            data[start : start + _PART_NBYTES]
            for start in range(0, len(data), _PART_NBYTES)
        ]
        self.put(f"{key}.n", str(len(parts)))
        for index, part in enumerate(parts):
            self.put(f"{key}.{index}", part)

    def get_text(self, rank: int, key: str) -> str:
        """Return what a rank has put by ``put_text``."""
        count = int(self.get(rank, f"{key}.n"))
        data = "".join(self.get(rank, f"{key}.{index}") for index in range(count))
        return base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)).decode()

    def _failed(self, what: str) -> BluecommError:
        return BluecommError(
            f"init on rank {self._rank}: {self.name}: {what}; {self.remedy}",
            operation="init",
            rank=self._rank,
        )

    def _too_late(self, timeout_s: float) -> CommunicationTimeout:
        """Return the error of a fence that some ranks have not come to."""
        return CommunicationTimeout(
            f"init on rank {self._rank}: not all ranks called bluecomm.init within "
            f"{timeout_s:g} s; {self.name} does not tell which",
            operation="init",
            rank=self._rank,
            timeout_s=timeout_s,
        )
