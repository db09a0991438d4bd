"""The mean of a bucket's values on a machine, which the machine publishes as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from bluecomm.device.staging import HostCopy
from bluecomm.device.values import values_on_host
from bluecomm.ops.refusal import Operation
from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.buckets.flat import flat_empty
from bluecomm.optim.machines import MachineExchange, Machines
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import DoneHandle, MappedHandle


@dataclasses.dataclass(frozen=True)
class Published:
    """The outcome of an exchange of changes.

    Attributes:
        values: The new parameters; ``None`` if this publisher's change could not be
            sent.
        not_finite: Position of each parameter that could not be sent, and the member
            that could not send it.
    """

    values: torch.Tensor | None
    not_finite: Sequence[tuple[int, int]]


class MachineMean:
    """Takes the mean of a machine's values, and gives its ranks what follows from it.

    If NCCL adds the values of a machine, they stay on their device. Otherwise all of
    this happens on the host, and values on a device are copied there first, which waits
    for the device.

    Behind the values, messages inside the machine have one number per parameter: bit
    ``k`` says that the ``k``-th of the machines that exchange could not send it.

    Args:
        machines: The machines of the optimizer's ranks.
        bucket: The bucket.
        dtype: Type of the values; a floating-point type of at least 32 bits.
        on_host: Whether all of this happens on the host, also if the parameters are on
            a device. Otherwise NCCL adds values of a device; see ``Machines.adds_on``.
    """

    def __init__(
        self, machines: Machines, bucket: Bucket, dtype: torch.dtype, *, on_host: bool
    ) -> None:
        self._machines = machines
        self._name = f"{bucket.name}.machine"
        self._staging = None if on_host else bucket.staging
        numel, faults = bucket.numel, len(bucket.slots)
        self._flat: torch.Tensor | None = None
        if self._staging is None:
            # Operations in shared memory read it without a copy.
            self._flat = shared_empty(numel + faults, dtype)
            self._values, self._faults = self._flat[:numel], self._flat[numel:]
        else:
            self._values = flat_empty(numel, dtype, self._staging)
            self._faults = torch.empty(faults, dtype=dtype)

    def start(
        self,
        values: torch.Tensor,
        publish: Callable[[torch.Tensor], Handle[Published]],
        refused: Callable[[], Iterable[Operation]],
        members: Sequence[int],
    ) -> Handle[Published]:
        """Start an exchange.

        Args:
            values: This rank's values; shape ``(numel,)``.
            publish: Starts what the first rank of a machine does with the mean, if
                there are several machines. It may change the mean.
            refused: Describes the operations of ``publish``.
            members: The machines that ``publish`` may name as unable to send, this one
                first.

        Returns:
            The outcome of ``publish``, where the values are added. It is the same on
            all ranks of a machine; on a single machine it is the mean.
        """
        if self._staging is None:
            limit_s = self._machines.local.world.config.operation_timeout_s
            values = values_on_host(values, self._name, limit_s)
        self._values.copy_(values)
        self._faults.zero_()

        def between() -> Handle[Any]:
            mean = self._values.div_(self._machines.local.size)
            first_ranks = self._machines.first_ranks
            if first_ranks.size == 1 or not first_ranks.included:
                return DoneHandle(None)
            return MappedHandle(publish(mean), write)

        def write(published: Published) -> None:
            for position, member in published.not_finite:
                self._faults[position] += 2 ** members.index(member)
            if published.values is not None:
                self._values.copy_(published.values)

        def read(_: object) -> Published:
            found = [
                (position, member)
                for position, bits in enumerate(self._faults.tolist())
                for k, member in enumerate(members)
                if int(bits) >> k & 1
            ]
            is_intact = all(member != members[0] for _, member in found)
            return Published(self._values if is_intact else None, found)

        exchange = MachineExchange(self._machines, self._name, between, refused)
        return MappedHandle(self._start(exchange), read)

    def _start(self, exchange: MachineExchange) -> Handle[Any]:
        if self._flat is not None:
            return exchange.start(HostCopy(self._flat, None))
        assert self._staging is not None
        return exchange.start_on_device(self._values, self._faults, self._staging)
