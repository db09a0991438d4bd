"""Errors that bluecomm raises, one class for each reaction that a caller may choose.

::

    BluecommError
      NotInitializedError    also ValueError        call init() first
      MismatchError          also RuntimeError,     make the ranks' calls agree
                                  ValueError
      HorovodInternalError   also RuntimeError      a rank failed; a retry may help
        PeerLostError        also ConnectionError   a peer is lost; end, or continue
                                                    without it
        CommunicationTimeout also TimeoutError      find the silent rank
      ShutdownError          also RuntimeError      do not communicate after shutdown
      SuspendedError         also RuntimeError      call resume() first

A call that is wrong on this rank alone raises plain ``ValueError`` or ``TypeError``
here, and ``MismatchError`` on the other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

__all__ = [
    "BluecommError",
    "CommunicationTimeout",
    "HorovodInternalError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ShutdownError",
    "SuspendedError",
]

_Error = TypeVar("_Error", bound="BluecommError")


class BluecommError(Exception):
    """Base class of the errors that bluecomm raises.

    The facts are attributes, so that programs need not parse the text. Pickling
    preserves them.

    Args:
        message: Whole text of the error. ``describe`` composes it from the facts.
        operation: Kind of the operation, such as ``"neighbor_allreduce"``.
        name: Name of the operation, such as ``"conv1.weight"``.
        rank: Rank that raises the error.
        peers: Ranks that the error is about, which are lost, silent or disagree.
        expected: Expected value, in words.
        got: Actual value, in words.
        timeout_s: Deadline that passed, in seconds.
        remedy: Advice for the reader, as a sentence.
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str | None = None,
        name: str | None = None,
        rank: int | None = None,
        peers: Iterable[int] = (),
        expected: str | None = None,
        got: str | None = None,
        timeout_s: float | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.name = name
        self.rank = rank
        self.peers = tuple(peers)
        self.expected = expected
        self.got = got
        self.timeout_s = timeout_s
        self.remedy = remedy

    def advise(self, remedy: str) -> None:
        """Add advice to the text."""
        self.remedy = remedy
        self.args = (f"{self}. {remedy}",)

    @classmethod
    def describe(
        cls: type[_Error],
        what: str,
        *,
        operation: str,
        name: str | None = None,
        rank: int | None = None,
        peers: Iterable[int] = (),
        expected: str | None = None,
        got: str | None = None,
        timeout_s: float | None = None,
        remedy: str | None = None,
    ) -> _Error:
        """Return an error whose text is composed from its facts.

        The text is ``operation 'name' on rank R: what (expected E, got G). Remedy``,
        without the facts that are not given.

        Args:
            what: Clause that says what happened and names the peers, without a period.
            operation: As in the constructor, like all others.
            name: See the constructor.
            rank: See the constructor.
            peers: See the constructor.
            expected: See the constructor.
            got: See the constructor.
            timeout_s: See the constructor.
            remedy: See the constructor.

        Returns:
            Error of the class that the method is called on.
        """
        subject = operation
        if name is not None:
            subject += f" {name!r}"
        if rank is not None:
            subject += f" on rank {rank}"
        facts = [
            f"{label} {fact}"
            for label, fact in (("expected", expected), ("got", got))
            if fact is not None
        ]
        message = f"{subject}: {what}"
        if facts:
            message += f" ({', '.join(facts)})"
        if remedy is not None:
            message += f". {remedy}"
        return cls(
            message,
            operation=operation,
            name=name,
            rank=rank,
            peers=peers,
            expected=expected,
            got=got,
            timeout_s=timeout_s,
            remedy=remedy,
        )


class NotInitializedError(BluecommError, ValueError):
    """A function that needs the world was called before ``init``."""


class MismatchError(BluecommError, RuntimeError, ValueError):
    """The ranks called one operation with different arguments, or one refused it."""


class HorovodInternalError(BluecommError, RuntimeError):
    """A rank was lost or silent; the base of the errors that a retry may overcome.

    The name is Horovod's, whose scripts catch it to retry. Errors in the program, such
    as ``MismatchError``, are not among its subclasses, so a retry never hides them.
    """


class PeerLostError(HorovodInternalError, ConnectionError):
    """A peer that this rank needs exited, was killed, or cannot be reached."""


class CommunicationTimeout(HorovodInternalError, TimeoutError):
    """An operation did not complete before its deadline."""


class ShutdownError(BluecommError, RuntimeError):
    """An operation was called after ``shutdown`` or was cut short by it."""


class SuspendedError(BluecommError, RuntimeError):
    """An operation was called, or waited for, between ``suspend`` and ``resume``."""
