"""Copies tensors of devices to the host, where the engine works, and back.

docs/gpu.md describes the life of an operation on such a tensor. ``cuda_staging.py`` and
``blocking_staging.py`` have the kinds of staging.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bluecomm.device.copy_back import CopyBack
from bluecomm.device.point import Point, wait_on_host

if TYPE_CHECKING:
    from bluecomm._native import Gate


class HostCopy(NamedTuple):
    """A tensor's values on their way to the host.

    Attributes:
        values: Contiguous tensor on the host that gets the values.
        gate: Opens when all values have arrived. Before that it says how many bytes
            have arrived, from the first one on. ``None`` if all have arrived.
    """

    values: torch.Tensor
    gate: Gate | None

    def wait(self, operation: str, timeout_s: float) -> None:
        """Wait until the values are there; see ``wait_on_host``."""
        if self.gate is not None:
            wait_on_host(self.gate, operation, timeout_s)


class Staging(abc.ABC):
    """Copies the tensors of one device to the host and back. Thread-safe."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Torch's name of the device, such as ``cuda:0``."""

    @abc.abstractmethod
    def current_stream(self) -> int:
        """Return the number of the stream on which the program computes."""

    @abc.abstractmethod
    def to_host(
        self,
        tensor: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        after: Iterable[int] = (),
    ) -> HostCopy:
        """Copy a contiguous tensor, in the order of the program's current stream.

        Args:
            tensor: Tensor on the device. It must not change before the copy has ended;
                it is kept until then.
            into: Contiguous memory of ``empty_on_host`` for the values, as large as
                ``tensor``. Default: new memory.
            after: Other streams whose work so far the copy waits for, too.

        Raises:
            RuntimeError: CUDA has failed, or a stream captures a CUDA graph.
        """

    @abc.abstractmethod
    def empty_on_host(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor on the host that copies fast."""

    @abc.abstractmethod
    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor on the device."""

    @abc.abstractmethod
    def fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Do what ``write`` does for a contiguous tensor, unseen by autograd.

        The memory of ``tensor`` gets the values, also if it is a conjugate view.
        """

    @abc.abstractmethod
    def point(self) -> Point | None:
        """Return the point behind what the current stream has been given so far.

        Returns:
            The point; ``None`` if the program waits for all that it starts.

        Raises:
            RuntimeError: As in ``to_host``.
        """

    @abc.abstractmethod
    def follow(self, point: Point | None) -> None:
        """Make later work of the current stream wait for a point of this device.

        Raises:
            RuntimeError: CUDA has failed.
        """

    @abc.abstractmethod
    def follow_streams(self, streams: Iterable[int]) -> None:
        """Make later work of the current stream wait for the work of others so far.

        Args:
            streams: Numbers of the streams, as of ``current_stream``.

        Raises:
            RuntimeError: CUDA has failed.
        """

    @abc.abstractmethod
    def keep_for_stream(self, memory: object) -> None:
        """Keep memory until the current stream has finished its work so far.

        Torch reuses the memory of a freed tensor in the order of the stream that has
        allocated it. That stream may not wait for the current one.

        Args:
            memory: Objects that the work uses.

        Raises:
            RuntimeError: As in ``to_host``.
        """

    @abc.abstractmethod
    def new_future(self) -> torch.futures.Future[Any]:
        """Return a future whose callbacks compute on a stream of their own."""

    def stream_context(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that passes on the stream that is current now.

        In the thread that enters the context, this stream is the current one, if the
        device has streams. The context may be entered again when it has been left.
        """
        return contextlib.nullcontext()

    def write(self, tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write values of the host to a tensor, in the order of the current stream.

        The program need not wait for the copy before it uses ``tensor``.

        Args:
            tensor: Tensor on the device.
            values: Contiguous tensor on the host with as many elements. It must not
                change afterwards.

        Returns:
            ``tensor``.

        Raises:
            RuntimeError: As in ``to_host``.
        """
        return CopyBack(self, values, tensor).finish()

    def copy_back(
        self,
        values: torch.Tensor,
        target: torch.Tensor | None,
        after: Point | None = None,
    ) -> CopyBack:
        """Return what copies a result to the device while it is being computed.

        Args:
            values: Memory of ``empty_on_host`` that gets the result.
            target: As for ``CopyBack``.
            after: As for ``CopyBack``.
        """
        nbytes = self._part_nbytes(values.nbytes)
        return CopyBack(self, values, target, nbytes, after)

    def _part_nbytes(self, nbytes: int) -> int:
        from bluecomm._native import copy_part_nbytes

        return copy_part_nbytes(nbytes)

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        """Return a new tensor on the device with values of the host; see ``write``."""
        return CopyBack(self, values, None).finish()
