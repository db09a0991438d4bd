"""Finds out whether an optimizer may be fused, by steps on a few small parameters."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from bluecomm.optim.derived_class import plain_class
from bluecomm.optim.fused.fusion import Fusion
from bluecomm.optim.fused.unhooked import unhooked

_SHAPES = ((3, 4), (5,), (1,), (2, 3, 2, 2))
# Factors of the gradients in each step: changing norms, so that a rule that clips or
# scales by a norm shows. RAdam takes its general form after five steps.
_SCALES = (1.0, 100.0, 0.01, 1.0, 10.0, 0.1, 1.0, 1.0)
# In this step one parameter has no gradient.
_UNUSED_STEP, _UNUSED = 3, 1
# A schedule may have set the rate to 0, with which all optimizers do nothing.
_LR = 0.01
# Difference that may be due to rounding, in units of the largest change.
_TOLERANCE = 1e-5
_NOT_COPIED = {"param_groups", "state", "defaults", "step"}


class _Probed:
    """An optimizer of the given one's class and options, with small parameters."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[Mapping[str, Any]],
        *,
        has_state: bool = False,
    ) -> None:
        stand_ins: dict[int, Any] = {
            id(p): nn.Parameter(torch.zeros(1))
            for group in optimizer.param_groups
            for p in group["params"]
        }
        cls = plain_class(type(optimizer))
        self.optimizer = cls.__new__(cls)
        self.optimizer.__dict__.update(
            {
                key: copy.deepcopy(value, stand_ins)
                for key, value in optimizer.__dict__.items()
                if key not in _NOT_COPIED
                and not key.startswith(("_optimizer_", "_bluecomm"))
            }
        )
        self.optimizer.__dict__.update(
            defaults=dict(optimizer.defaults),
            state=defaultdict(dict),
            param_groups=[_probed_group(group) for group in groups],
            _optimizer_step_pre_hooks=OrderedDict(),
            _optimizer_step_post_hooks=OrderedDict(),
        )
        self.parameters: list[torch.Tensor] = [
            p for group in self.optimizer.param_groups for p in group["params"]
        ]
        if has_state:
            self._take_state(optimizer, groups)
        self.at_start = [p.detach().clone() for p in self.parameters]
        self.step = unhooked(self.optimizer.step)

    def _take_state(
        self, optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]
    ) -> None:
        for group, probed in zip(groups, self.optimizer.param_groups, strict=True):
            (like,) = group["params"]
            entry = optimizer.state.get(like, {})
            for parameter in probed["params"] if entry else ():
                self.optimizer.state[parameter] = _probed_entry(entry, like, parameter)

    def train(self, fusion: Fusion | None = None) -> None:
        """Take all steps, with the same gradients each time."""
        random = torch.Generator().manual_seed(1)
        for number, scale in enumerate(_SCALES):
            for position, parameter in enumerate(self.parameters):
                gradient = torch.randn(
                    parameter.shape, generator=random, dtype=torch.float64
                )
                is_unused = number == _UNUSED_STEP and position == _UNUSED
                parameter.grad = None if is_unused else (gradient * scale).to(parameter)
            if fusion is None:
                self.step()
            else:
                fusion.step(self.optimizer, self.step)

    def evaluations(self) -> int:
        """Return how often a step evaluates its closure."""
        count = 0

        def closure() -> torch.Tensor:
            nonlocal count
            count += 1
            return torch.zeros(())

        try:
            self.step(closure)
        except TypeError:
            return 1  # it takes no closure
        return count


def state_of_a_step(optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
    """Return the state that steps give a parameter; empty if none can be taken.

    The optimizer and its parameters are left alone.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            probed = _Probed(optimizer, _different(optimizer.param_groups)[:1])
            probed.train()
            return next(iter(probed.optimizer.state.values()), {})
        except Exception:
            return {}


def check_elementwise(
    optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]
) -> dict[str, bool]:
    """Raise unless a step on flat memory gives what steps on the parameters give.

    Args:
        optimizer: The optimizer, whose parameters and state are left alone.
        groups: Param groups whose options are tried.

    Returns:
        The kinds of state that were seen; see ``FlatState``.

    Raises:
        ValueError: The optimizer cannot be fused, and why.
    """
    name = plain_class(type(optimizer)).__name__
    reason, kinds = _refusal(optimizer, groups)
    if reason:
        raise ValueError(
            f"fuse_optimizer: {name} cannot be fused: {reason}. Only optimizers that "
            "update each element from its own gradient and state can be fused; use "
            "this one as it is"
        )
    return kinds


def _refusal(
    optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, bool]]:
    # A class may state an obstacle that a few steps would not show.
    if obstacle := getattr(optimizer, "obstacle_to_fusion", ""):
        return str(obstacle), {}
    if any(group.get("differentiable") for group in groups):
        return "differentiable=True makes the step part of autograd's graph", {}
    if any(
        isinstance(value, torch.optim.Optimizer)
        for key, value in vars(optimizer).items()
        if not key.startswith("_bluecomm")
    ):
        return "it wraps another optimizer; fuse that one", {}
    groups = _different(groups)
    if not groups:
        return "", {}
    with torch.random.fork_rng(devices=[]):
        try:
            plain, fused = _probe(optimizer, groups)
        except Exception as error:
            return f"its step fails with small dense parameters ({_say(error)})", {}
        if any(not isinstance(key, torch.Tensor) for key in plain.optimizer.state):
            return "it has state that belongs to no parameter", {}
        if not any(map(_differ, plain.parameters, plain.at_start)):
            return "its step does not change the parameters of its groups", {}
        if any(parameter.grad is None for parameter in plain.parameters):
            return "its step removes the gradients", {}
        try:
            fusion = Fusion(fused.optimizer)
            fused.train(fusion)
        except Exception as error:
            return f"its step fails on a flat tensor ({_say(error)})", {}
        difference = _difference(plain, fused)
        if not difference and (evaluations := plain.evaluations()) != 1:
            return f"a step evaluates its closure {evaluations} times", {}
    return difference, fusion.kinds


def _probe(
    optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]
) -> tuple[_Probed, _Probed]:
    """Return an optimizer that has taken the steps, and one that has not."""
    try:
        plain = _Probed(optimizer, groups)
        plain.train()
        return plain, _Probed(optimizer, groups)
    except Exception:
        # Its constructor may make the state that its step expects.
        if not optimizer.state:
            raise
    plain = _Probed(optimizer, groups, has_state=True)
    plain.train()
    return plain, _Probed(optimizer, groups, has_state=True)


def _say(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return not torch.equal(one, other)


def _difference(plain: _Probed, fused: _Probed) -> str:
    """Say how a fused training differs from a plain one; "" if it does not."""
    for start, expected, got in zip(
        plain.at_start, plain.parameters, fused.parameters, strict=True
    ):
        change = (expected - start).abs().max().item()
        error = (got - expected).abs().max().item()
        if not error <= _TOLERANCE * change:
            return (
                "the update of an element depends on other elements of its parameter, "
                f"or on chance: with a flat tensor, a parameter of shape "
                f"{tuple(start.shape)} differs by {error / (change or 1):.2g} of its "
                "change"
            )
        states = [
            probed.optimizer.state.get(parameter, {})
            for probed, parameter in ((plain, expected), (fused, got))
        ]
        if key := _different_key(*states):
            return f"its state {key!r} differs with a flat tensor"
    return ""


def _different_key(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    for key in sorted(expected.keys() | got.keys()):
        if key not in expected or key not in got:
            return key
        values = expected[key], got[key]
        if isinstance(values[0], torch.Tensor) != isinstance(values[1], torch.Tensor):
            return key
        if not isinstance(values[0], torch.Tensor):
            if values[0] != values[1]:
                return key
            continue
        if values[0].shape != values[1].shape or values[0].dtype != values[1].dtype:
            return key
        if not torch.allclose(*values, rtol=_TOLERANCE, atol=1e-12):
            return key
    return ""


def _different(groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the groups that differ in more than rate and parameters."""
    found: dict[str, Mapping[str, Any]] = {}
    for group in groups:
        parameters = [p for p in group["params"] if p.dtype.is_floating_point]
        parameters += [p for p in group["params"] if p.dtype.is_complex]
        options = {
            key: value
            for key, value in group.items()
            if key not in ("params", "param_names", "lr", "initial_lr")
        }
        for parameter in parameters[:1]:
            kind = (repr(sorted(options.items())), parameter.device)
            found.setdefault(repr(kind), {**group, "params": [parameter]})
    return list(found.values())


def _probed_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group with the same options and small parameters."""
    like = group["params"][0]
    dtype = torch.complex128 if like.dtype.is_complex else torch.float64
    if like.device.type == "mps":
        dtype = torch.float32
    random = torch.Generator().manual_seed(0)
    options = {
        key: copy.deepcopy(value)
        for key, value in group.items()
        if key not in ("params", "param_names")
    }
    rate = options.get("lr")
    if isinstance(rate, torch.Tensor):
        options["lr"] = torch.full_like(rate, _LR)
    elif isinstance(rate, (int, float)):
        options["lr"] = _LR
    # Their norms differ, as those of layers do.
    values = [
        torch.randn(shape, generator=random, dtype=torch.float64) * 3.0**position
        for position, shape in enumerate(_SHAPES)
    ]
    parameters = [
        nn.Parameter(value.to(device=like.device, dtype=dtype)) for value in values
    ]
    return {**options, "params": parameters}


def _probed_entry(
    entry: Mapping[str, Any], of: torch.Tensor, parameter: torch.Tensor
) -> dict[str, Any]:
    """Return state for a small parameter, with the values of a real one."""
    return {
        key: torch.full_like(parameter.detach(), value.flatten()[0].item())
        if isinstance(value, torch.Tensor) and value.shape == of.shape
        else copy.deepcopy(value)
        for key, value in entry.items()
    }
