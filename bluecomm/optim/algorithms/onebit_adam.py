"""Averages signs of Adam's momentum, as 1-bit Adam does, and carries errors over."""

from __future__ import annotations

from typing import Any

import torch

from bluecomm.compression import ErrorFeedback, ScaledSign
from bluecomm.optim.algorithms.momentum_averaging import MomentumAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.registry import register_algorithm


@register_algorithm("onebit_adam")
class OneBitAdam(MomentumAveraging):
    """Adam whose momentum is averaged in one bit per value after a warm-up.

    The optimizer is ``bluecomm.optim.QAdam``. In its warm-up gradients are averaged
    exactly. Afterwards rank ``j`` has an error ``d_j``, and the owner of each piece of
    the momentum another one ``e``, all 0 at first. With ``r = sqrt(v) + eps``::

        c_j = (beta1 m + (1 - beta1) g_j(x)) / r + d_j,    d_j <- c_j - C(c_j)
        s   = mean_j C(c_j) + e,                           e   <- s - C(s)
        m   <- r C(s)

    and the optimizer steps with ``m``, which has the same bits on all ranks. ``C`` is
    ``ScaledSign``: the signs, and one scale for each 4096 values.

    With ``hierarchical=True``, codes and errors are those of the sums over a machine.

    Args:
        normalized: Whether ``r`` is as above. If not, it is 1, as in the paper: then
            elements with a small ``v`` take large steps.
        hierarchical: As in ``bytegrad``, for the momentum.

    Source:
        Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with
        Adam's Convergence Speed", ICML 2021, arXiv:2102.02888.
    """

    works_on_devices = True
    codec_class = ScaledSign

    def __init__(self, *, normalized: bool = True, hierarchical: bool = False) -> None:
        if not isinstance(normalized, bool):
            raise TypeError(f"normalized must be True or False, got {normalized!r}")
        super().__init__(hierarchical)
        self._is_normalized = normalized
        # One for each bucket.
        self._feedback: list[ErrorFeedback] = []

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        return super().memory_in_models(ranks, neighbors) + 1  # the errors of codes

    def feedback_of(self, bucket: Bucket) -> ErrorFeedback:
        self._feedback.append(ErrorFeedback())
        return self._feedback[-1]

    def as_sent(
        self, parameter: torch.Tensor, group: dict[str, Any], momentum: torch.Tensor
    ) -> torch.Tensor:
        """Return a momentum, divided by ``r`` unless the method sends it as it is."""
        if self._is_normalized:
            return momentum / self._optimizer.denominator_of(parameter, group)
        return momentum

    def tensor_to_send(
        self, parameter: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor | None:
        momentum = super().tensor_to_send(parameter, group)
        if momentum is None:
            return None
        return self.as_sent(parameter, group, momentum)

    def take(
        self, parameter: torch.Tensor, group: dict[str, Any], average: torch.Tensor
    ) -> None:
        if self._is_normalized:
            average = average * self._optimizer.denominator_of(parameter, group)
        super().take(parameter, group, average)

    def state_dict(self) -> dict[str, Any]:
        return {
            "ranks": self.context.comm.size,
            "machines": self.machine_sizes,
            "numels": [bucket.numel for bucket in self.buckets],
            "errors": [feedback.state_dict() for feedback in self._feedback],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        errors = state.get("errors", ())
        if not any(errors):  # those of a warm-up, or of another algorithm
            errors = [{}] * len(self._feedback)
            state = {}
        now = self.state_dict()
        for key in ("ranks", "machines", "numels"):
            if state and state.get(key) != now[key]:
                raise ValueError(
                    f"{self._name}: the errors belong to {key}={state.get(key)}, and "
                    f"this optimizer has {now[key]}; use as many ranks and the same "
                    "bucket_bytes, or drop the key 'bluecomm' of the optimizer's "
                    "state, and the errors begin at 0"
                )
        for feedback, kept in zip(self._feedback, errors, strict=True):
            feedback.load_state_dict(kept)
