"""The base of writers whose file appears only when it is complete."""

from __future__ import annotations

import abc
import contextlib
import os
from types import TracebackType
from typing import TypeVar

_Writer = TypeVar("_Writer", bound="WholeFileWriter")


class WholeFileWriter(abc.ABC):
    """Writes beside the file, and gives it its name in ``close``.

    If the ``with`` block or ``close`` raises, no file is left, and an older one of this
    name stays.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._unfinished = f"{self._path}.{os.getpid()}.unfinished"
        self._is_open = True

    @abc.abstractmethod
    def _write_rest(self) -> None:
        """Write what is missing, and close the unfinished file."""

    @abc.abstractmethod
    def _close_file(self) -> None:
        """Close the unfinished file, which is of no use any more."""

    def close(self) -> None:
        """Write the rest, and give the file its name.

        Raises:
            OSError: The file cannot be written.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._write_rest()
            os.replace(self._unfinished, self._path)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        self._is_open = False
        with contextlib.suppress(OSError):
            self._close_file()
        with contextlib.suppress(OSError):
            os.unlink(self._unfinished)

    def __enter__(self: _Writer) -> _Writer:
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the writer, or remove the unfinished file after an error."""
        if kind is None:
            self.close()
        elif self._is_open:
            self._abandon()
