"""The sends and receives of a group."""

from __future__ import annotations

import datetime

import torch

from bluecomm.ops.monitored_barrier import monitored_barrier
from bluecomm.torch_backend.calls import GroupCalls
from bluecomm.torch_backend.tensors import as_input, as_output, written_back
from bluecomm.torch_backend.work import GroupWork

Tensors = list[torch.Tensor]

_ANY_SOURCE = -1


class PointToPoint(GroupCalls):
    """Methods for send and recv.

    Sends and receives match by group, ranks, tag and order, and do not wait for
    collectives. torch waits for the work of synchronous ones.
    """

    def send(self, tensors: Tensors, dst: int, tag: int) -> GroupWork | None:
        """Send one tensor to a rank of the group."""
        if (other := self._other("send", tensors)) is not None:
            passed: GroupWork | None = other(tensors, dst, tag)
            return passed
        (tensor,) = tensors
        operation = "send"
        self._check_rank(operation, dst)
        source = as_input(tensor, operation)
        call = self._message("send", source, dst, tag)
        return self._run_message(operation, call, tensors, tag, self._comm.rank, dst)

    def recv(self, tensors: Tensors, src: int, tag: int) -> GroupWork | None:
        """Write the values that a rank of the group has sent to one tensor."""
        if (other := self._other("recv", tensors)) is not None:
            passed: GroupWork | None = other(tensors, src, tag)
            return passed
        self._check_rank("recv", src)
        return self._receive("recv", tensors, src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork | None:
        """Write the first values that any rank has sent with this tag to one tensor."""
        if (other := self._other("recv_anysource", tensors)) is not None:
            passed: GroupWork | None = other(tensors, tag)
            return passed
        return self._receive("recvAnySource", tensors, _ANY_SOURCE, tag)

    def monitored_barrier(
        self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all ranks of the group; the error names those that did not come.

        Args:
            timeout: Time to wait. Default: the deadline of the group.
            wait_all_ranks: Ignored, because the error names all missing ranks anyway.
        """
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        monitored_barrier(self._comm, timeout_s=limit_s)

    def _receive(
        self, operation: str, tensors: Tensors, src: int, tag: int
    ) -> GroupWork | None:
        (tensor,) = tensors
        memory = as_output(tensor, operation)
        members = self._comm.ranks
        copy_back = written_back(tensor, memory)
        senders = []

        def finish(number: int) -> None:
            copy_back(number)
            is_any = src == _ANY_SOURCE
            sender = (
                members.index(self._comm.world.source_of(number)) if is_any else src
            )
            senders.append(sender)

        call = self._message("recv", memory, src, tag, finish)
        work = self._run_message(operation, call, tensors, tag, src, self._comm.rank)
        if work is not None:
            work.senders = senders
        return work
