"""Messages with the gradients of a bucket, and the tail that is sent along.

docs/optimizer.md describes the states of a bucket on a device.
"""

from __future__ import annotations

import abc

import torch

from bluecomm.compression import Compressor
from bluecomm.device.staging import HostCopy, Staging
from bluecomm.optim.buckets.gradient_views import GradientViews


class GradientMessage(abc.ABC):
    """The message of a rank for a bucket, and the memory of the result.

    Attributes:
        sent: Flat tensor on the host, perhaps on its way there: the gradients, then the
            tail.
        output: Memory of the result; ``None`` to overwrite what is sent.
    """

    sent: HostCopy
    output: torch.Tensor | None = None

    @abc.abstractmethod
    def take(self, result: torch.Tensor) -> None:
        """Make the result of the exchange the gradients and the tail."""


class HostMessage(GradientMessage):
    """The flat memory of gradients on the host, or what a compressor makes of it.

    Args:
        gradients: The gradients.
        compression: Makes them shorter.
    """

    def __init__(self, gradients: GradientViews, compression: type[Compressor]) -> None:
        self._gradients, self._compression = gradients, compression
        tensor, self._kept = compression.compress(gradients.flat)
        self.sent = HostCopy(tensor, None)
        self.output = gradients.other
        if self.output is not None and tensor is not gradients.flat:
            self.output = torch.empty_like(tensor)

    def take(self, result: torch.Tensor) -> None:
        gradients = self._gradients
        if result is gradients.other:
            gradients.swap()
        elif result is not gradients.flat:
            gradients.flat.copy_(self._compression.decompress(result, self._kept))


class DeviceMessage(GradientMessage):
    """Page-locked memory, to which the device copies its gradients.

    The message is new for each exchange, so it never waits for the copy of an earlier
    result. A compressor works on the device.

    Args:
        gradients: The gradients.
        compression: Makes them shorter.
        staging: Copies from the device to the host and back.
        keeps_input: Whether the exchange may have to be repeated.
    """

    def __init__(
        self,
        gradients: GradientViews,
        compression: type[Compressor],
        staging: Staging,
        *,
        keeps_input: bool,
    ) -> None:
        self._gradients, self._compression = gradients, compression
        self._staging = staging
        values, self._kept = compression.compress(gradients.values)
        self._is_plain = values is gradients.values
        tail, self._kept_of_tail = compression.compress(gradients.tail)
        self._count = values.numel()
        shape = (self._count + tail.numel(),)
        message = staging.empty_on_host(shape, values.dtype)
        if keeps_input:
            self.output = staging.empty_on_host(shape, values.dtype)
        message[self._count :].copy_(tail)
        copy = staging.to_host(
            values, into=message[: self._count], after=gradients.take_streams()
        )
        self.sent = HostCopy(message, copy.gate)

    def take(self, result: torch.Tensor) -> None:
        gradients, decompress = self._gradients, self._compression.decompress
        values, tail = result[: self._count], result[self._count :]
        gradients.tail.copy_(decompress(tail, self._kept_of_tail))
        if self._is_plain:
            self._staging.write(gradients.values, values)
        else:
            on_device = self._staging.to_device(values)
            with torch.no_grad():
                gradients.values.copy_(decompress(on_device, self._kept))


def message_of(
    gradients: GradientViews, compression: type[Compressor], *, keeps_input: bool
) -> GradientMessage:
    """Return the message with gradients that ``GradientViews.fill`` has collected.

    Args:
        gradients: The gradients.
        compression: Makes them shorter.
        keeps_input: Whether the exchange may have to be repeated.
    """
    if gradients.staging is None:
        return HostMessage(gradients, compression)
    return DeviceMessage(
        gradients, compression, gradients.staging, keeps_input=keeps_input
    )
