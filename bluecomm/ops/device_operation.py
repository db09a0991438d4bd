"""One operation on tensors of a device, from which its calls through NCCL are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from bluecomm.device.staging import Staging
from bluecomm.runtime import Communicator

if TYPE_CHECKING:
    from bluecomm._native import Parameters


class DeviceOperation(NamedTuple):
    """The members, tensors and parameters of one operation on a device.

    Attributes:
        comm: Members that take part.
        staging: Staging of the device.
        kind: The engine's name of the operation.
        dtype: The engine's name of the element type.
        source: Contiguous input on the device.
        result: Contiguous tensor for the result of this member; ``source`` itself, or
            apart from it. Unused on members of a reduce other than the root.
        parameters: Parameters of the kind.
    """

    comm: Communicator
    staging: Staging
    kind: str
    dtype: str
    source: torch.Tensor
    result: torch.Tensor
    parameters: Parameters
