"""An average whose values are where the parameters are, and whose tail is on the host.

docs/optimizer.md describes the states of a bucket on a device.
"""

from __future__ import annotations

import torch

from bluecomm.device.staging import HostCopy, Staging
from bluecomm.ops.allreduce import allreduce_parts_nonblocking
from bluecomm.ops.reduce_op import Average
from bluecomm.optim.buckets.flat import flat_empty
from bluecomm.optim.split_allreduce import SplitAllreduce, splits_allreduce
from bluecomm.runtime import Communicator, Handle


class FlatAverage:
    """Flat values and a tail, which are averaged over the ranks in place.

    Values on a device go through NCCL, or to the host and back. Call ``start``, wait
    for its handle, and pass the result to ``take``, or to ``on_host`` and then what
    that returns to ``take``. If the wait fails, call ``abandon``.

    Args:
        comm: Ranks that take part.
        numel: Number of values.
        tail: Number of elements behind them.
        dtype: Element type, a floating-point type.
        staging: Copies values from their device to the host; ``None`` if they are
            there.

    Attributes:
        values: The values, shape ``(numel,)``, not initialized.
        tail: The tail on the host, shape ``(tail,)``, not initialized.
    """

    def __init__(
        self,
        comm: Communicator,
        numel: int,
        tail: int,
        dtype: torch.dtype,
        staging: Staging | None,
    ) -> None:
        self._comm = comm
        self._staging = staging
        self._flat: torch.Tensor | None = None
        self._split: SplitAllreduce | None = None
        if staging is None:
            self._flat = flat_empty(numel + tail, dtype)
            self.values, self.tail = self._flat[:numel], self._flat[numel:]
        else:
            self.values = flat_empty(numel, dtype, staging)
            # The host writes and reads it, which must not wait for the device.
            self.tail = torch.empty(tail, dtype=dtype)

    def start(self, name: str) -> Handle[torch.Tensor]:
        """Start the operation of a name on what the current stream has computed."""
        comm, values, self._split = self._comm, self.values, None
        if splits_allreduce(comm, self._staging, values.dtype, Average):
            self._split = SplitAllreduce(comm, values, self.tail, op=Average, name=name)
            return self._split.values
        message = self._message()
        return allreduce_parts_nonblocking(
            message.values,
            (),
            op=Average,
            name=name,
            process_set=comm,
            gate=message.gate,
        )

    def on_host(self, result: torch.Tensor, operation: str) -> torch.Tensor:
        """Return the averages of the values, and behind them that of the tail.

        Waits for the device, if the values are there.

        Args:
            result: The result of the operation.
            operation: Its name, for errors.

        Raises:
            BluecommError: A part of the operation, or the device failed.
        """
        if self._split is None:
            return result
        self._split.wait_for_tail()
        message = self._message()
        message.wait(operation, self._comm.world.config.operation_timeout_s)
        return message.values

    def take(self, result: torch.Tensor) -> None:
        """Make a result, or what ``on_host`` returned, the values and the tail.

        Raises:
            BluecommError: A part of the operation failed.
        """
        if self._staging is None:
            return
        if result is self.values:
            assert self._split is not None
            self._split.wait_for_tail()
            return
        count = self.values.numel()
        self.tail.copy_(result[count:])
        self._staging.write(self.values, result[:count])

    def abandon(self) -> None:
        """End what still runs, because the wait has failed."""
        if self._split is not None:
            self._split.abandon()

    def _message(self) -> HostCopy:
        """Return the values, perhaps on their way to the host, and then the tail."""
        if self._staging is None:
            assert self._flat is not None
            return HostCopy(self._flat, None)
        count = self.values.numel()
        message = self._staging.empty_on_host(
            (count + self.tail.numel(),), self.values.dtype
        )
        message[count:].copy_(self.tail)
        copy = self._staging.to_host(self.values, into=message[:count])
        return HostCopy(message, copy.gate)
