"""Moves the values of a tensor between its device and the host, in one call."""

from __future__ import annotations

import torch

from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of


def values_on_host(
    tensor: torch.Tensor, operation: str, timeout_s: float
) -> torch.Tensor:
    """Return a contiguous tensor's values on the host: itself, if it is there.

    Waits until the device has computed it.

    Raises:
        CommunicationTimeout: The device has not got there in time.
        BluecommError: Work that the program has started on the device failed.
        RuntimeError: As in ``Staging.to_host``.
    """
    staging = staging_of(tensor)
    if staging is None:
        return tensor
    copy = staging.to_host(tensor)
    copy.wait(operation, timeout_s)
    return copy.values


def values_beside(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return contiguous values of the host where a tensor is; see ``Staging.write``.

    Raises:
        RuntimeError: As in ``Staging.to_host``.
    """
    staging = staging_of(tensor)
    return values if staging is None else staging.to_device(values)


def copied_fast(staging: Staging, values: torch.Tensor) -> torch.Tensor:
    """Return a copy of values of the host on a device, without a wait for the device.

    CUDA blocks the program while it copies memory that is not page-locked, so this
    copies them to such memory first. They may change afterwards.

    Raises:
        RuntimeError: As in ``Staging.to_host``.
    """
    fast = staging.empty_on_host(values.shape, values.dtype)
    return staging.to_device(fast.copy_(values))
