"""The server of a quorum: takes the progress of ranks, and answers with parameters."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from bluecomm.device.values import values_on_host
from bluecomm.errors import BluecommError
from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.algorithm import Context
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.buckets.bucket_state import BucketState
from bluecomm.optim.quorum.links import SERVER, Link
from bluecomm.optim.quorum.messages import Answer, TaggedRoute, tensors_of
from bluecomm.optim.quorum.rounds import Closed, Progress, QuorumRounds, RoundOptions
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import GroupHandle, wait_all

# How often a rank that waits for its own server looks whether a grace has passed.
_LOOK_S = 0.05


class QuorumServer(Link):
    """Takes the progress of all ranks, and answers those whose round has closed.

    The thread of callbacks and that of the first rank's steps use it, one at a time.
    It is also the link of the first rank. All its tensors are on the host. Once a
    receive has failed, all progress is answered with the error.

    Args:
        context: The optimizer.
        buckets: Its buckets.
        options: When rounds close, and what they compute.
    """

    def __init__(
        self, context: Context, buckets: Sequence[Bucket], options: RoundOptions
    ) -> None:
        comm = context.comm
        self._limit_s = comm.world.config.operation_timeout_s
        self._buckets = buckets
        # Outer steps are small beside the parameters.
        self._memory = BucketState(
            buckets, ("outer", "momentum"), at_least=torch.float32, on_host=True
        )
        outer, momentum = (
            [self._memory.of(name, bucket) for bucket in buckets]
            for name in ("outer", "momentum")
        )
        self._rounds = QuorumRounds(comm.size, outer, momentum, options)
        others = [member for member in range(comm.size) if member != SERVER]
        self._routes = {
            member: TaggedRoute(comm, context.name, comm.ranks[member])
            for member in others
        }
        # Memory for the message of each other member.
        self._received = {
            member: [
                torch.empty(2, dtype=torch.int64),
                *(shared_empty(bucket.numel, bucket.dtype) for bucket in buckets),
            ]
            for member in others
        }
        self._changed = threading.Condition(threading.RLock())
        self._own: Answer | None = None
        self._error: Exception | None = None
        self._sending: list[Handle[list[None]]] = []

    def begin(self) -> None:
        """Let the outer parameters begin with the current ones."""
        limit_s = self._limit_s
        with self._changed:
            for bucket in self._buckets:
                outer, current = (
                    self._memory.of("outer", bucket),
                    bucket.parameters.current,
                )
                outer.copy_(values_on_host(current, bucket.name, limit_s))

    @property
    def is_idle(self) -> bool:
        """Whether no progress has come in the open round."""
        with self._changed:
            return not self._rounds.members

    def open(self) -> None:
        with self._changed:
            for member in self._routes:
                self._receive_from(member)

    def send(self, progress: Progress) -> None:
        with self._changed:
            self._own = None
            self._take(SERVER, progress)

    def is_answered(self) -> bool:
        with self._changed:
            self._close_if_due()
            return self._own is not None or self._error is not None

    def answer(self) -> Answer:
        # Each receive has a deadline, whose end is an error that wakes this thread.
        with self._changed:
            while not self.is_answered():
                self._changed.wait(_LOOK_S)
            self.check()
            assert self._own is not None
            answer, self._own = self._own, None
        if answer.all_end:
            # The world may end next, and the others have not received it yet.
            wait_all(self._sending)
            self._sending.clear()
        return answer

    def check(self) -> None:
        """Serve what is due; raise if the server has failed.

        Raises:
            BluecommError: A rank is lost, or the deadline has passed.
        """
        with self._changed:
            self._close_if_due()
            if self._error is not None:
                raise self._error

    def state_dict(self) -> dict[str, Any]:
        """Return the outer parameters, their momentum, and the number of the round."""
        with self._changed:
            return {
                "memory": self._memory.state_dict(),
                "round": self._rounds.number,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``state_dict`` returned."""
        with self._changed:
            self._memory.load_state_dict(state.get("memory", {}))
            self._rounds.number = state.get("round", 0)

    def _receive_from(self, member: int) -> None:
        """Start to receive the next message of a member."""
        message = GroupHandle(self._routes[member].receive(self._received[member]))
        message.on_finish(functools.partial(self._on_message, member, message))

    def _on_message(self, member: int, message: Handle[list[int]]) -> None:
        with self._changed:
            try:
                message.wait()
            except Exception as error:
                self._fail(error)
                return
            head, *values = self._received[member]
            steps, is_ending = head.tolist()
            self._take(member, Progress(values, steps, bool(is_ending)))

    def _take(self, member: int, progress: Progress) -> None:
        if self._error is not None:
            self._refuse([member], self._error)
            return
        self._rounds.take(member, progress)
        self._close_if_due()

    def _close_if_due(self) -> None:
        if self._error is not None or not self._rounds.is_due:
            return
        try:
            closed = self._rounds.close()
            self._answer(closed)
        except Exception as error:
            self._fail(error)

    def _answer(self, closed: Closed) -> None:
        """Answer the members of a round; receive from them unless all have ended."""
        values = [
            shared_empty(bucket.numel, bucket.dtype).copy_(
                self._memory.of("outer", bucket)
            )
            for bucket in self._buckets
        ]
        answer = Answer(values, closed.all_end)
        self._sending = [one for one in self._sending if not one.done()]
        others = [member for member in closed.members if member != SERVER]
        for member in others:
            self._sending.append(self._routes[member].send(tensors_of(answer)))
        if SERVER in closed.members:
            self._own = answer
            self._changed.notify_all()
        for member in () if closed.all_end else others:
            self._receive_from(member)

    def _fail(self, error: Exception) -> None:
        """Answer all members that wait, and those that come later, with an error."""
        if self._error is None:
            self._error = error
            self._refuse(self._rounds.members, error)
            self._changed.notify_all()

    def _refuse(self, members: Sequence[int], error: Exception) -> None:
        """Answer members with an error, as far as they can be reached."""
        tensors = tensors_of(Answer((), error=f"{type(error).__name__}: {error}"))
        for member in members:
            if member != SERVER:
                with contextlib.suppress(BluecommError):
                    self._sending.append(self._routes[member].send(tensors))
