"""Lets a series of operations end before the first of their errors is raised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Failures:
    """The errors of operations that have to end, whichever of them fail.

    ::

        failures = Failures()
        for handle in handles:
            with failures.kept():
                handle.wait()
        failures.raise_first()
    """

    def __init__(self) -> None:
        self._errors: list[Exception] = []

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep an error that is raised in this context."""
        try:
            yield
        except Exception as error:
            self._errors.append(error)

    def raise_first(self) -> None:
        """Raise the first error, if there is one."""
        if self._errors:
            raise self._errors[0]
