"""A message whose values are where the parameters are, and whose tail is on the host.

docs/optimizer.md describes the states of a bucket on a device.
"""

from __future__ import annotations

import torch

from bluecomm.device.staging import HostCopy, Staging
from bluecomm.optim.buckets.flat import flat_empty


class FlatMessage:
    """Flat values and a tail, which are sent as one tensor of the host.

    Call ``send``, use its tensor in an exchange in place, then call ``take``.

    Args:
        numel: Number of values.
        tail: Number of elements behind them.
        dtype: Element type.
        staging: Copies values from their device to the host; ``None`` if they are
            there.

    Attributes:
        values: The values, shape ``(numel,)``, not initialized.
        tail: The tail on the host, shape ``(tail,)``, not initialized.
    """

    def __init__(
        self, numel: int, tail: int, dtype: torch.dtype, staging: Staging | None
    ) -> None:
        self._staging = staging
        self._flat: torch.Tensor | None = None
        if staging is None:
            self._flat = flat_empty(numel + tail, dtype)
            self.values, self.tail = self._flat[:numel], self._flat[numel:]
        else:
            self.values = flat_empty(numel, dtype, staging)
            # The host writes and reads it, which must not wait for the device.
            self.tail = torch.empty(tail, dtype=dtype)

    def send(self) -> HostCopy:
        """Return the message: the values, perhaps on their way, and the tail."""
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

    def take(self, message: torch.Tensor) -> None:
        """Make what the exchange has left in the message the values and the tail."""
        if self._staging is None:
            return
        count = self.values.numel()
        self.tail.copy_(message[count:])
        self._staging.write(self.values, message[:count])
