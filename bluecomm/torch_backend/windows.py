"""Windows of a group, as torch 2.14 has them: puts into the tensors of other ranks.

A put travels as a message, and the target's ``wait_signal`` takes it from the sender's
messages and writes it to the tensor. So the values that a rank has put before a signal
are in the target's tensor when the target has waited for this signal, and not before:
torch calls this access type SEPARATE. The windows of bluecomm itself (docs/windows.md)
need no call of the target, but they keep the values of each sender apart.
"""

from __future__ import annotations

import datetime
import itertools
import time
import types
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from bluecomm.ops.objects import allgather_object
from bluecomm.runtime import Communicator
from bluecomm.torch_backend.point_to_point import PointToPoint
from bluecomm.torch_backend.tensors import as_input
from bluecomm.torch_backend.work import GroupWork

# torch's tags are 32-bit numbers.
_FIRST_TAG = 1 << 40
# A header has an action, and the offset and number of the elements that follow it.
_PUT, _SIGNAL = 0, 1


class Windows(PointToPoint):
    """Methods that make windows."""

    supports_window = True
    # The communicator whose windows have been counted, and the counter.
    _windows: tuple[Communicator, itertools.count[int]] | None = None

    def new_window(self, tensor: torch.Tensor | None = None) -> GroupWindow:
        """Return a new window. Collective.

        Args:
            tensor: Tensor that others write to; None to register one later.
        """
        self._check_open("new_window")
        if self._windows is None or self._windows[0] is not self._comm:
            self._windows = self._comm, itertools.count()
        window = GroupWindow(self, next(self._windows[1]))
        if tensor is not None:
            window.tensor_register(tensor)
        return window


class GroupWindow:
    """A tensor of each rank of a group, to which the others write.

    Its methods are those of torch's ``Window``. Errors are those of ``dist.send`` and
    ``dist.recv``.

    Args:
        group: The group.
        number: Number of windows that the group has had before.
    """

    def __init__(self, group: Windows, number: int) -> None:
        self._group = group
        self._comm = group._comm
        self._number = number
        self._registrations = itertools.count()
        self._tensor: torch.Tensor | None = None
        self._sizes: list[tuple[int, torch.dtype]] = []
        # Sends of which the program has no Work, by target.
        self._sent: dict[int, list[GroupWork]] = {}
        # The receive under way, by sender: of this header, or of the values of a put.
        # It outlives a wait that times out.
        self._awaited: dict[int, tuple[torch.Tensor | None, GroupWork]] = {}
        self._own_signals = 0  # of this rank to itself, not waited for

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Let the other ranks write to a tensor. Collective.

        Args:
            tensor: Contiguous dense CPU tensor; its size may differ by rank.
            owning: Ignored: the window always keeps the tensor alive.

        Raises:
            RuntimeError: The window has a tensor, or the tensor is not dense or not on
                the CPU.
            ValueError: The tensor is not contiguous.
        """
        if self._tensor is not None:
            raise RuntimeError("tensor_register: the window has a tensor already")
        memory = as_input(tensor, "tensor_register")
        if memory.data_ptr() != tensor.data_ptr():
            raise ValueError(
                "tensor_register: the tensor must be contiguous, got shape "
                f"{tuple(tensor.shape)} with strides {tensor.stride()}"
            )
        name = f"torch.window.{self._number}.{next(self._registrations)}"
        size = memory.numel(), memory.dtype
        self._sizes = allgather_object(size, name, process_set=self._comm)
        self._tensor = memory.view(-1)

    def tensor_deregister(self) -> None:
        """Give the tensor back. Collective: call it when all puts have been taken."""
        self._registered("tensor_deregister")
        self._tensor = None
        self._sizes = []

    def put(
        self,
        tensor: torch.Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        opts: Any = None,
    ) -> GroupWork | None:
        """Write a tensor to the window of a rank, which sees it after the next signal.

        Args:
            tensor: Values of the type of the target's tensor.
            dst_rank: Target, in the group.
            target_offset_nelems: Offset of the first element in the target's tensor.
            async_op: Whether to return a Work, which has ended when the target has
                taken the values; they must not change before. Otherwise they are
                copied, and the call returns at once. Values on a GPU that go through
                NCCL are lost if this rank ends before the target has taken them.
            opts: torch's PutOptions. Their timeout is that of the group.

        Raises:
            RuntimeError: No tensor is registered, or the types differ.
            ValueError: The elements do not lie in the target's tensor.
        """
        own = self._registered("put")
        self._group._check_rank("put", dst_rank)
        numel, dtype = self._sizes[dst_rank]
        values = as_input(tensor, "put").view(-1)
        if values.dtype != dtype:
            raise RuntimeError(
                f"put: the window of rank {dst_rank} has elements of {dtype}, got "
                f"{values.dtype}"
            )
        end = target_offset_nelems + values.numel()
        if target_offset_nelems < 0 or end > numel:
            raise ValueError(
                f"put: the window of rank {dst_rank} has {numel} elements, got "
                f"elements {target_offset_nelems} to {end}"
            )
        if dst_rank == self._comm.rank:
            own[target_offset_nelems:end] = values
            return GroupWork([], [tensor]) if async_op else None
        self._raise_failures(dst_rank)
        if not async_op:
            values = values.clone()
        header = torch.tensor([_PUT, target_offset_nelems, values.numel()])
        self._sent.setdefault(dst_rank, []).append(self._send(header, dst_rank))
        work = self._send(values, dst_rank)
        if async_op:
            return work
        self._sent[dst_rank].append(work)
        return None

    def signal(
        self, peer_rank: int, async_op: bool, opts: Any = None
    ) -> GroupWork | None:
        """Let a rank that waits for it see all values that were put before.

        Raises:
            BluecommError: An earlier put to this rank has failed.
        """
        self._registered("signal")
        self._group._check_rank("signal", peer_rank)
        if peer_rank == self._comm.rank:
            self._own_signals += 1
            return GroupWork([], []) if async_op else None
        self._raise_failures(peer_rank)
        work = self._send(torch.tensor([_SIGNAL, 0, 0]), peer_rank)
        if async_op:
            return work
        work.wait()
        return None

    def wait_signal(
        self, peer_rank: int, async_op: bool, opts: Any = None
    ) -> SignalWork | None:
        """Wait for the next signal of a rank, and take what it has put before.

        Args:
            peer_rank: Rank of the group that signals.
            async_op: Whether to return a Work; its ``wait`` then does all this.
            opts: torch's WaitSignalOptions; their timeout, or that of the group.

        Raises:
            CommunicationTimeout: The signal did not come in time. It can be waited for
                again.
            RuntimeError: This rank waits for a signal to itself that it has not sent.
        """
        self._registered("wait_signal")
        self._group._check_rank("wait_signal", peer_rank)
        timeout: datetime.timedelta | None = getattr(opts, "timeout", None)
        if timeout is None or timeout.days < 0:
            timeout = datetime.timedelta(0)
        work = SignalWork(self, peer_rank)
        if async_op:
            return work
        work.wait(timeout)
        return None

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """Return the tensor of this rank; those of others cannot be mapped.

        Raises:
            RuntimeError: ``rank`` is another one.
        """
        tensor = self._registered("map_remote_tensor")
        if rank != self._comm.rank:
            raise RuntimeError(
                f"map_remote_tensor: the tensor of rank {rank} is in another process; "
                "use put and signal there"
            )
        return tensor

    def get_attr(self, peer_rank: int) -> Any:
        """Return an object whose ``access_type`` is SEPARATE."""
        self._group._check_rank("get_attr", peer_rank)
        kinds = getattr(c10d, "WindowAccessType", None)
        return types.SimpleNamespace(
            access_type="SEPARATE" if kinds is None else kinds.SEPARATE
        )

    def take(self, peer: int, timeout: datetime.timedelta) -> None:
        """Take the messages of a rank up to its next signal; see ``wait_signal``."""
        tensor = self._registered("wait_signal")
        if peer == self._comm.rank:
            if not self._own_signals:
                raise RuntimeError("wait_signal: this rank has not signaled to itself")
            self._own_signals -= 1
            return
        limit_s = timeout.total_seconds()
        deadline = time.monotonic() + limit_s
        while True:
            header, work = self._awaited.get(peer) or self._next_header(peer)
            self._awaited[peer] = header, work
            left_s = max(deadline - time.monotonic(), 1e-3) if limit_s else 0.0
            work.wait(datetime.timedelta(seconds=left_s))
            del self._awaited[peer]
            if header is None:
                continue
            action, offset, numel = header.tolist()
            if action == _SIGNAL:
                return
            values = tensor[offset : offset + numel]
            self._awaited[peer] = None, self._receive(values, peer)

    def _registered(self, operation: str) -> torch.Tensor:
        """Return the tensor of this rank.

        Raises:
            RuntimeError: There is none, or the group has other members since.
            ShutdownError: The group has been destroyed.
        """
        self._group._check_open(operation)
        if self._comm is not self._group._comm:
            raise RuntimeError(
                f"{operation}: the group has been reconfigured since this window was "
                "made; make another one"
            )
        if self._tensor is None:
            raise RuntimeError(f"{operation}: call tensor_register first")
        return self._tensor

    def _raise_failures(self, target: int) -> None:
        """Raise the error of a put that has failed since."""
        left = []
        for work in self._sent.pop(target, []):
            if work.is_completed():
                work.wait()
            else:
                left.append(work)
        if left:
            self._sent[target] = left

    def _next_header(self, peer: int) -> tuple[torch.Tensor, GroupWork]:
        header = torch.zeros(3, dtype=torch.int64)
        return header, self._receive(header, peer)

    def _send(self, tensor: torch.Tensor, peer: int) -> GroupWork:
        work = self._group.send([tensor], peer, _FIRST_TAG + self._number)
        assert work is not None
        return work

    def _receive(self, tensor: torch.Tensor, peer: int) -> GroupWork:
        work = self._group.recv([tensor], peer, _FIRST_TAG + self._number)
        assert work is not None
        return work


class SignalWork(dist.Work):
    """Waits for a signal when its caller does.

    Args:
        window: Window that gets the signal.
        peer: Rank of the group that signals.
    """

    def __init__(self, window: GroupWindow, peer: int) -> None:
        super().__init__()
        self._window = window
        self._peer = peer
        self._has_ended = False

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Wait for the signal.

        Args:
            timeout: Time to wait at most; 0 for the deadline of the group.
        """
        if not self._has_ended:
            self._window.take(self._peer, timeout)
            self._has_ended = True
        return True

    def is_completed(self) -> bool:
        """Return whether the signal has been waited for."""
        return self._has_ended
