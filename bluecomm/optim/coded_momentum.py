"""Averages a tensor for each parameter of a bucket, such as momentum, as codes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from bluecomm.compression import Codec, ErrorFeedback
from bluecomm.optim.algorithm import Context
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.finite import is_finite
from bluecomm.optim.machine_gradients import coded_gradients
from bluecomm.optim.machines import Machines


class CodedMomentum:
    """The exchanges of one tensor for each parameter of a bucket.

    They are those of ``CodedGradients``, for a second bucket whose parameters have no
    values, and the tensors as gradients. Call ``start``, ``begin``, then ``finish``.

    Args:
        context: The optimizer; its world has at least two ranks.
        bucket: The bucket of the parameters.
        codec: The codec, which encodes float32.
        feedback: Adds what codes lose to the next round; see ``CodedGradients``.
        machines: The machines, if only they exchange codes; see ``MachineGradients``.
    """

    def __init__(
        self,
        context: Context,
        bucket: Bucket,
        codec: Codec,
        feedback: ErrorFeedback | None = None,
        machines: Machines | None = None,
    ) -> None:
        self._slots = bucket.slots
        stand_ins = [
            dataclasses.replace(slot, parameter=_without_values(slot.parameter))
            for slot in bucket.slots
        ]
        self._bucket = Bucket(f"{bucket.name}.momentum", stand_ins, bucket.numel)
        self._coded = coded_gradients(context, self._bucket, codec, feedback, machines)

    def start(self, tensor_of: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Start to send tensors.

        Args:
            tensor_of: Returns the tensor of a parameter, of the same shape and type, or
                ``None``. If no rank has a tensor of a parameter, it gets no average;
                otherwise ``None`` counts as zeros.
        """
        for slot, stand_in in zip(self._slots, self._bucket.slots, strict=True):
            stand_in.parameter.grad = tensor_of(slot.parameter)
        self._bucket.gradients.fill()
        self._coded.start(is_active=True)

    def begin(self) -> None:
        """Start the exchange of tensors on a device; see ``CodedGradients.begin``."""
        self._coded.begin()

    @property
    def is_under_way(self) -> bool:
        """Whether an exchange has been started and not been finished."""
        return self._coded.is_under_way

    def finish(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Wait for the exchange; return the parameters that were sent, and averages.

        The averages are valid until the next ``start``.

        Raises:
            FloatingPointError: An average is not finite. Raised on all ranks.
            BluecommError: An operation failed.
        """
        self._coded.finish(is_active=True)
        self._check_finite()
        return [
            (slot.parameter, stand_in.parameter.grad)
            for slot, stand_in in zip(self._slots, self._bucket.slots, strict=True)
            if stand_in.parameter.grad is not None
        ]

    def _check_finite(self) -> None:
        if self._coded.is_known_finite or is_finite(self._bucket.gradients.values):
            return
        names = [
            repr(stand_in.name)
            for stand_in in self._bucket.slots
            if stand_in.parameter.grad is not None
            and not is_finite(stand_in.parameter.grad)
        ]
        raise FloatingPointError(
            f"DistributedOptimizer: the average momentum of {', '.join(names)} is not "
            "finite; keep gradients finite after backward(), and lower the learning "
            "rate if they grow"
        )


def _without_values(parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape and type that takes no memory."""
    return parameter.new_empty(()).expand(parameter.shape)
