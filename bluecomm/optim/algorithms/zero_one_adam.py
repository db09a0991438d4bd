"""Runs 0/1 Adam: 1-bit Adam with fewer exact gradients, and with local steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from bluecomm.optim.algorithms.onebit_adam import OneBitAdam
from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.qadam import MOMENTUM
from bluecomm.optim.registry import register_algorithm
from bluecomm.topology.graph import check_integer


@dataclasses.dataclass
class _LocalSteps:
    """The steps of a parameter since the ranks last agreed on its value.

    Attributes:
        total: The sum of the steps, each as it is sent: rate times momentum.
        anchor: The common value, with the weight decay of the steps before this one;
            ``None`` if the parameter still has it.
        rates: The sum of the rates.
        earlier_rates: The same without the step under way.
    """

    total: torch.Tensor
    anchor: torch.Tensor | None
    rates: float = 0.0
    earlier_rates: float = 0.0


@register_algorithm("zero_one_adam")
class ZeroOneAdam(OneBitAdam):
    """Sends gradients seldom, else signs of momentum, and later not in each step.

    The optimizer is ``bluecomm.optim.QAdam``, with ``updates_per_doubling``. A step of
    its warm-up that updates ``v`` averages gradients exactly. In all others rank ``j``
    steps alone, with ``r = sqrt(v) + eps``, a rate ``a`` that includes the bias
    correction, and an ``m`` that ``QAdam`` clips::

        m_j <- beta1 m_j + (1 - beta1) g_j(x_j)
        u_j <- u_j + a m_j / r,    A <- A + a,    x_j <- x_j - a m_j / r

    until a round averages ``u_j``. With ``D`` the mean of the codes of ``u_j``, with
    errors as in ``onebit_adam``, and ``x`` the value after the last round::

        m_j <- r D / A,    x_j <- x - D,    u_j <- 0,    A <- 0

    so ``m`` and ``x`` have the same bits on all ranks again. In the warm-up there is a
    round in each step. Step ``s = 0, 1, ...`` behind it has one if the last round was
    ``min(max_local_steps, 2**(s // steps_per_doubling))`` steps ago. Between rounds the
    ranks only tell each other which gradients exist and are finite.

    If all rates since the last round are 0, the momentum begins anew at 0.

    Args:
        steps_per_doubling: Number of steps after which the interval between rounds
            doubles; in the paper, those in which the learning rate halves.
        max_local_steps: The longest interval.
        normalized: As in ``onebit_adam``. If not, ranks send the sum of ``a m_j``, as
            in the paper.
        hierarchical: As in ``bytegrad``, for ``u``.

    Source:
        Lu et al., "Maximizing Communication Efficiency for Large-scale Training via 0/1
        Adam", arXiv:2202.06009. The intervals, and their defaults, are those of
        DeepSpeed, whose options ``var_update_scaler``, ``local_step_scaler`` and
        ``local_step_clipper`` are ``updates_per_doubling``, ``steps_per_doubling`` and
        ``max_local_steps`` here.
    """

    works_on_devices = True

    def __init__(
        self,
        *,
        steps_per_doubling: int = 1000,
        max_local_steps: int = 16,
        normalized: bool = True,
        hierarchical: bool = False,
    ) -> None:
        check_integer(steps_per_doubling, "steps_per_doubling", minimum=1)
        check_integer(max_local_steps, "max_local_steps", minimum=1)
        super().__init__(normalized=normalized, hierarchical=hierarchical)
        self._steps_per_doubling = steps_per_doubling
        self._max_local_steps = max_local_steps
        # Steps since the last round.
        self._steps = 0
        self._local: dict[torch.Tensor, _LocalSteps] = {}

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        # The sum of local steps, and the values before them.
        return super().memory_in_models(ranks, neighbors) + 2

    def average_momentum(self) -> None:
        has_round = self._steps + 1 >= self._interval
        groups = self._optimizer.groups_of_parameters()
        for slot in self._slots():
            if slot.parameter.grad is not None:
                self._add_step(
                    slot.parameter, groups[slot.parameter], has_round=has_round
                )
        if has_round:
            super().average_momentum()
            self._steps = 0
        else:
            self._steps += 1

    def tensor_to_send(
        self, parameter: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor | None:
        local = self._local.get(parameter)
        return None if local is None else local.total

    def take(
        self, parameter: torch.Tensor, group: dict[str, Any], average: torch.Tensor
    ) -> None:
        local = self._local.pop(parameter)
        average = average / local.rates if local.rates else torch.zeros_like(average)
        super().take(parameter, group, average)
        if local.anchor is not None:
            # The optimizer takes the step under way, if there is a gradient.
            earlier = local.rates if parameter.grad is None else local.earlier_rates
            if not self._is_normalized:
                average = average / self._optimizer.denominator_of(parameter, group)
            parameter.copy_(local.anchor.sub_(average, alpha=earlier))

    def state_dict(self) -> dict[str, Any]:
        local = {
            slot.name: dataclasses.asdict(self._local[slot.parameter])
            for slot in self._slots()
            if slot.parameter in self._local
        }
        return {**super().state_dict(), "steps": self._steps, "local": local}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._steps = state.get("steps", 0)
        kept = state.get("local", {})
        self._local = {
            slot.parameter: _LocalSteps(**_copies(kept[slot.name], slot.parameter))
            for slot in self._slots()
            if slot.name in kept
        }

    @property
    def _interval(self) -> int:
        """Steps from the last round to the next one."""
        group = self._optimizer.param_groups[0]
        behind_warmup = max(0, int(group["steps"] - group["warmup_steps"]))
        # No shift is longer than it needs to be.
        longest = self._max_local_steps
        doublings = min(behind_warmup // self._steps_per_doubling, longest.bit_length())
        return min(longest, 1 << doublings)

    @torch.no_grad()
    def _add_step(
        self, parameter: torch.Tensor, group: dict[str, Any], *, has_round: bool
    ) -> None:
        """Add the step that this rank is about to take."""
        optimizer = self._optimizer
        local = self._local.get(parameter)
        if local is None:
            anchor = None if has_round else parameter.detach().clone()
            local = _LocalSteps(torch.zeros_like(parameter), anchor)
            self._local[parameter] = local
        rate, factor = optimizer.rate_of(parameter, group), optimizer.factor_of(group)
        momentum = optimizer.state[parameter][MOMENTUM]
        local.total.mul_(factor)
        local.total.add_(self.as_sent(parameter, group, momentum), alpha=rate)
        local.earlier_rates = local.rates
        local.rates = factor * local.rates + rate
        if local.anchor is not None and not has_round:
            local.anchor.mul_(factor)

    def _slots(self) -> Iterator[Slot]:
        """Return the slots of all buckets."""
        for bucket in self.buckets:
            yield from bucket.slots


def _copies(state: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
    """Return a state with tensors of its own, on the device of a parameter."""
    return {
        key: value.clone().to(parameter) if isinstance(value, torch.Tensor) else value
        for key, value in state.items()
    }
