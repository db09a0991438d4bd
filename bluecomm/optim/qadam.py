"""Adam whose second moment is frozen after a warm-up, so that momentum can be sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bluecomm.optim.qadam_options import check_groups, check_saved
from bluecomm.optim.second_moment import is_updated_in, mean_of_positive

# Keys of the state, as in torch.
MOMENTUM, _SECOND = "exp_avg", "exp_avg_sq"
# Key of the number of updates of the second moment, if it is not that of the steps.
_UPDATES = "second_moment_updates"


class QAdam(torch.optim.Optimizer):
    """Adam with a warm-up, for ``qadam``, ``onebit_adam`` and ``zero_one_adam``.

    In the first ``warmup_steps`` steps it is ``torch.optim.Adam``. After the last one
    the second moment ``v`` is frozen, with the bias correction of that step. Step ``t``
    of the steps that follow computes::

        m <- beta1 m + (1 - beta1) g
        x <- x - lr / (1 - beta1**t) * m / (sqrt(v) + eps)

    The algorithms average ``m`` over the ranks before it is used. Alone, or with
    another algorithm, the optimizer follows the same formula.

    A frozen ``v`` of 0 would turn any later gradient into a step of almost
    ``1 / eps``. So elements that had no gradient other than 0 in the warm-up take the
    mean ``v`` of the other elements of their parameter, or of all parameters if it has
    no others.

    With ``updates_per_doubling``, ``v`` is updated less and less often in the warm-up,
    as in 0/1 Adam (arXiv:2202.06009): the number of steps from update ``j`` to the next
    one is ``2**(j // updates_per_doubling)``, ``j = 0, 1, ...``. The bias correction
    counts updates. Meanwhile the algorithms average momentum, in codes. A ``v`` that
    has not seen a gradient yet would make the step of this gradient too long. So in
    steps that do not update ``v``, also after the warm-up, each element of ``m`` is
    clipped to what would move it by ``b lr``, where ``b`` is the bound of Adam's own
    steps, ``max(1, (1 - beta1) / sqrt(1 - beta2))`` (arXiv:1412.6980, section 2.1).
    The paper does not clip.

    Args:
        params: Parameters or groups, as in ``torch.optim.Adam``.
        lr: Learning rate.
        warmup_steps: Number of steps of the warm-up. All groups have the same.
        betas: Decay of ``m`` and, in the warm-up, of ``v``.
        eps: Added to the square root of ``v``.
        weight_decay: Factor of the parameters that is added to the gradients, in all
            steps.
        decoupled_weight_decay: Whether parameters are multiplied by
            ``1 - lr * weight_decay`` instead, as in ``torch.optim.AdamW``.
        updates_per_doubling: Number of updates of ``v`` after which the interval
            between them doubles. 0/1 Adam takes 16. ``None``: each step of the warm-up
            updates ``v``.

    Raises:
        TypeError: ``warmup_steps`` or ``updates_per_doubling`` is not an integer.
        ValueError: A value is out of its range, or groups differ in one of these two.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float | torch.Tensor = 1e-3,
        warmup_steps: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        updates_per_doubling: int | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "warmup_steps": warmup_steps,
            "updates_per_doubling": updates_per_doubling,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            # Steps taken, and whether the moments are those of the next one already.
            "steps": 0,
            "has_new_moments": False,
        }
        super().__init__(params, defaults)

    @property
    def obstacle_to_fusion(self) -> str:
        """Return why ``fuse_optimizer`` refuses it, as a clause."""
        return (
            "after the warm-up, elements that had no gradient take the mean second "
            "moment of their parameter"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        check_saved(state.get("param_groups", ()))
        super().__setstate__(state)
        # The state of torch's Adam has no warm-up, so the whole warm-up follows.
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in every optimizer, after a check of its options."""
        if self.param_groups:
            param_group.setdefault("steps", self.param_groups[0]["steps"])
        super().add_param_group(param_group)
        try:
            check_groups(self.param_groups)
        except Exception:
            self.param_groups.pop()
            raise

    @property
    def in_warmup(self) -> bool:
        """Whether the next step belongs to the warm-up."""
        group = self.param_groups[0]
        return bool(group["steps"] < group["warmup_steps"])

    @property
    def updates_second_moment(self) -> bool:
        """Whether the next step updates the second moment."""
        group = self.param_groups[0]
        doubling = group["updates_per_doubling"]
        if doubling is None or not self.in_warmup:
            return self.in_warmup
        return is_updated_in(group["steps"], doubling)

    @torch.no_grad()
    def update_moments(self) -> None:
        """Add the gradients to the moments; ``step`` then only uses the moments.

        For algorithms that change the momentum before it is used.

        Raises:
            RuntimeError: A gradient is sparse.
            ValueError: A parameter has its first gradient after the warm-up.
        """
        is_updated = self.updates_second_moment
        for group, parameter in self._to_step():
            self._check_steppable(group, parameter)
        for group, parameter in self._to_step():
            beta1, beta2 = group["betas"]
            gradient = parameter.grad
            state = self._state_of(parameter)
            if group["updates_per_doubling"] is not None:
                state[_UPDATES] = self._updates_of(parameter) + is_updated
            state["step"] += 1
            if group["weight_decay"] and not group["decoupled_weight_decay"]:
                gradient = gradient.add(parameter, alpha=group["weight_decay"])
            state[MOMENTUM].lerp_(gradient, 1 - beta1)
            if is_updated:
                state[_SECOND].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            elif group["updates_per_doubling"] is not None:
                self._clip_momentum(parameter, group)
        for group in self.param_groups:
            group["has_new_moments"] = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: Computes the gradients again, and returns the loss.

        Returns:
            The loss, if there is a closure.

        Raises:
            RuntimeError: A gradient is sparse.
            ValueError: A parameter has its first gradient after the warm-up.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.param_groups[0]["has_new_moments"]:
            self.update_moments()
        was_warm = self.in_warmup
        for group, parameter in self._to_step():
            self._apply(group, parameter)
        for group in self.param_groups:
            group["steps"] += 1
            group["has_new_moments"] = False
        if was_warm and not self.in_warmup:
            self._freeze()
        return loss

    def groups_of_parameters(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Return the group of each parameter."""
        return {
            parameter: group
            for group in self.param_groups
            for parameter in group["params"]
        }

    @torch.no_grad()
    def denominator_of(
        self, parameter: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor:
        """Return ``sqrt(v) + eps`` of a parameter of a group, with ``v`` corrected."""
        return self._root_of(parameter, group).add_(group["eps"])

    def rate_of(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        """Return the rate of a parameter whose moments are new, with bias corrected."""
        steps = float(self.state[parameter]["step"])
        return float(float(group["lr"]) / (1 - group["betas"][0] ** steps))

    @staticmethod
    def factor_of(group: dict[str, Any]) -> float:
        """Return the factor by which a step multiplies the parameters of a group."""
        if not group["decoupled_weight_decay"]:
            return 1.0
        return float(1 - float(group["lr"]) * group["weight_decay"])

    def _to_step(self) -> Iterable[tuple[dict[str, Any], Any]]:
        """Return the parameters with a gradient, and their groups."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield group, parameter

    def _check_steppable(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        """Raise if the gradient of a parameter cannot be used."""
        assert parameter.grad is not None
        if parameter.grad.layout is not torch.strided:
            raise RuntimeError(
                "QAdam needs dense gradients, and that of a parameter of shape "
                f"{tuple(parameter.shape)} is sparse; make the layer with sparse=False"
            )
        if not (self.in_warmup or self.state.get(parameter)):
            raise ValueError(
                f"QAdam: a parameter of shape {tuple(parameter.shape)} has its first "
                f"gradient in step {group['steps'] + 1}, and the second moment is "
                f"frozen after {group['warmup_steps']} steps. Raise warmup_steps, or "
                "make a new QAdam once the parameter is trained"
            )

    def _state_of(self, parameter: torch.Tensor) -> Any:
        """Return the state of a parameter that is about to be stepped."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in (MOMENTUM, _SECOND):
                state[name] = torch.zeros_like(
                    parameter, memory_format=torch.preserve_format
                )
        return state

    def _apply(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        """Move a parameter along its momentum."""
        if group["decoupled_weight_decay"]:
            parameter.mul_(self.factor_of(group))
        rate = self.rate_of(parameter, group)
        denominator = self.denominator_of(parameter, group)
        parameter.addcdiv_(self.state[parameter][MOMENTUM], denominator, value=-rate)

    def _root_of(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Return ``sqrt(v)`` of a parameter of a group, with ``v`` corrected."""
        root: torch.Tensor = self.state[parameter][_SECOND].sqrt()
        if self.in_warmup:
            root.div_(math.sqrt(self._correction_of(parameter, group)))
        return root

    def _clip_momentum(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        """Clip a new momentum to what steps with a new second moment may have."""
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        bound = max(1.0, (1 - beta1) / math.sqrt(1 - beta2))
        limit = self._root_of(parameter, group)
        limit.mul_(bound * (1 - beta1 ** float(state["step"])))
        state[MOMENTUM].clamp_(-limit, limit)

    def _freeze(self) -> None:
        """Correct the bias of the second moments, which change no more."""
        means = [
            (parameter, group, mean_of_positive([self.state[parameter][_SECOND]]))
            for parameter, group in self.groups_of_parameters().items()
            if self.state.get(parameter)
        ]
        typical = self._typical()
        for parameter, group, mean in means:
            correction = self._correction_of(parameter, group)
            second = self.state[parameter][_SECOND].div_(correction)
            second.masked_fill_(second == 0, mean / correction or typical)

    def _updates_of(self, parameter: torch.Tensor) -> int:
        """Return the number of updates of a parameter's second moment."""
        state = self.state[parameter]
        # A state of Adam has had one in each step.
        return int(state.get(_UPDATES, state["step"]))

    def _correction_of(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        """Return the divisor that corrects the bias of a second moment."""
        updates = self._updates_of(parameter)
        return float(1 - group["betas"][1] ** updates) if updates else 1.0

    def _typical(self) -> float:
        """Return the mean ``v`` of all parameters."""
        corrected = (
            self.state[parameter][_SECOND] / self._correction_of(parameter, group)
            for parameter, group in self.groups_of_parameters().items()
            if self.state.get(parameter)
        )
        return mean_of_positive(corrected) or 1.0
