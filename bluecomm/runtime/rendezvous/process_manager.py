"""Key-value exchange through the process manager that started the ranks.

There are two protocols, which MPI uses but which need no MPI: PMI-2, lines of text over
an inherited socket (`pmi2.py`), and PMIx, a library (`pmix.py`).
"""

from __future__ import annotations

import abc
import base64

from bluecomm.errors import BluecommError, CommunicationTimeout

# A value has at most 1024 bytes with its terminator (PMI2_MAX_VALLEN).
_PART_NBYTES = 900


class ProcessManager(abc.ABC):
    """Key-value store: after a fence all ranks can get what each rank has put.

    Args:
        rank: This rank.
    """

    name: str
    # Advice to the user after a failure.
    remedy: str

    def __init__(self, rank: int) -> None:
        self._rank = rank

    @abc.abstractmethod
    def put(self, key: str, value: str) -> None:
        """Publish an ASCII value of at most 900 bytes under this rank's ``key``."""

    @abc.abstractmethod
    def fence(self, timeout_s: float) -> None:
        """Wait until all ranks have called this.

        Raises:
            CommunicationTimeout: Some ranks did not call it in time.
        """

    @abc.abstractmethod
    def get(self, rank: int, key: str) -> str:
        """Return the value that a rank has put before the last fence."""

    @abc.abstractmethod
    def close(self) -> None:
        """Tell the process manager that this rank no longer needs it."""

    def put_text(self, key: str, text: str) -> None:
        """Publish a text of any length and any characters."""
        data = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        parts = [
            data[start : start + _PART_NBYTES]
            for start in range(0, len(data), _PART_NBYTES)
        ]
        self.put(f"{key}.n", str(len(parts)))
        for index, part in enumerate(parts):
            self.put(f"{key}.{index}", part)

    def get_text(self, rank: int, key: str) -> str:
        """Return the text that a rank has put with ``put_text``."""
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
        """Return the error of a fence that some ranks have not reached."""
        return CommunicationTimeout(
            f"init on rank {self._rank}: not all ranks called bluecomm.init within "
            f"{timeout_s:g} s; {self.name} does not say which ranks",
            operation="init",
            rank=self._rank,
            timeout_s=timeout_s,
        )
