"""Links between a rank and the server of its quorum."""

from __future__ import annotations

import abc

import torch

from bluecomm.optim.algorithm import Context
from bluecomm.optim.quorum.messages import Answer, AwaitedAnswer, TaggedRoute
from bluecomm.optim.quorum.rounds import Progress
from bluecomm.runtime import Handle

# The member that is the server.
SERVER = 0


class Link(abc.ABC):
    """The way of one rank's progress to the server, and of the answer back."""

    @abc.abstractmethod
    def open(self) -> None:
        """Begin to exchange messages, at the start or after all ranks have ended."""

    @abc.abstractmethod
    def send(self, progress: Progress) -> None:
        """Send progress. The one before must have been answered."""

    @abc.abstractmethod
    def is_answered(self) -> bool:
        """Return whether the answer has come; an error counts as one."""

    @abc.abstractmethod
    def answer(self) -> Answer:
        """Wait for the answer.

        Raises:
            BluecommError: A rank is lost, or the deadline has passed.
        """


class RemoteLink(Link):
    """The link of a rank that is not the server.

    Args:
        context: The optimizer.
    """

    def __init__(self, context: Context) -> None:
        comm = context.comm
        self._route = TaggedRoute(comm, context.name, comm.ranks[SERVER])
        self._sending: Handle[list[None]] | None = None
        self._awaited: AwaitedAnswer | None = None

    def open(self) -> None:
        pass

    def send(self, progress: Progress) -> None:
        head = torch.tensor([progress.steps, int(progress.is_ending)])
        self._sending = self._route.send([head, *progress.values])
        self._awaited = AwaitedAnswer(self._route, progress.values)

    def is_answered(self) -> bool:
        assert self._awaited is not None
        return self._awaited.done()

    def answer(self) -> Answer:
        assert self._awaited is not None
        assert self._sending is not None
        awaited, self._awaited = self._awaited, None
        answer = awaited.wait()
        # The server has received the progress before it answers.
        self._sending.wait()
        return answer
