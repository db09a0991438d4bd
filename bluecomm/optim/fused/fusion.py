"""Runs the step of an optimizer on flat groups."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bluecomm.optim.fused.flat_group import FlatGroup
from bluecomm.optim.fused.layout import lay_out, overlapping


class FusionCounts(NamedTuple):
    """The work of a fused optimizer so far.

    Attributes:
        steps: Number of steps.
        runs: Number of flat tensors that were stepped, in all steps.
        alone: Number of parameters that were stepped by themselves, in all steps.
    """

    steps: int = 0
    runs: int = 0
    alone: int = 0


class _Part(NamedTuple):
    """A param group: its parameters, in flat groups and alone."""

    parameters: list[torch.Tensor]
    groups: list[FlatGroup]
    alone: list[torch.Tensor]


class Fusion:
    """The flat groups of one optimizer.

    It holds no reference to the optimizer, so it can be passed on to one that is
    derived from it.

    Args:
        optimizer: The optimizer, whose parameters move to flat memory.
        kinds: See ``FlatState``.
        max_elements: Elements of the largest parameter that is moved, if limited.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        kinds: dict[str, bool] | None = None,
        max_elements: int | None = None,
    ) -> None:
        self.counts = FusionCounts()
        self.kinds: dict[str, bool] = {} if kinds is None else kinds
        self._max_elements = max_elements
        self._parts: list[_Part] = []
        with torch.no_grad():
            self._follow(optimizer)

    def step(
        self, optimizer: torch.optim.Optimizer, plain_step: Callable[[], Any]
    ) -> Any:
        """Run a step on the flat groups, and return its result.

        During the step, the optimizer has other ``param_groups`` and ``state``, and no
        hooks.

        Args:
            optimizer: The optimizer.
            plain_step: The step of its own class.

        Raises:
            RuntimeError: A parameter or its state no longer fits.
        """
        with torch.no_grad():
            self._follow(optimizer)
            groups, stepped, alone = self._prepare(optimizer)
        attributes = optimizer.__dict__
        own = {
            name: attributes[name]
            for name in (
                *("param_groups", "state"),
                *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
            )
        }
        attributes["param_groups"], attributes["state"] = groups, stepped
        attributes["_optimizer_step_pre_hooks"] = OrderedDict()
        attributes["_optimizer_step_post_hooks"] = OrderedDict()
        has_failed = True
        try:
            result = plain_step()
            has_failed = False
        finally:
            attributes.update(own)
            if has_failed:
                for part in self._parts:
                    for flat_group in part.groups:
                        flat_group.forget()
        with torch.no_grad():
            self._finish(optimizer, groups, stepped, alone)
        return result

    def _follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Lay out the flat groups anew if the optimizer has other parameters."""
        groups = optimizer.param_groups
        if len(groups) == len(self._parts) and all(
            len(group["params"]) == len(part.parameters)
            and all(map(operator.is_, group["params"], part.parameters))
            for group, part in zip(groups, self._parts, strict=True)
        ):
            return
        # A DistributedOptimizer that has moved a parameter to its bucket keeps it.
        moved_away = {
            id(parameter)
            for part in self._parts
            for flat_group in part.groups
            for position, parameter in enumerate(flat_group.parameters)
            if not flat_group.holds(position)
        }
        limit = self._max_elements
        tied = overlapping([p for group in groups for p in group["params"]])
        self._parts = [
            _Part(
                list(group["params"]),
                *lay_out(
                    group["params"],
                    f"param_groups[{number}]",
                    lambda p: (
                        id(p) not in tied and (limit is None or p.numel() <= limit)
                    ),
                    lambda p: id(p) not in moved_away,
                    self.kinds,
                ),
            )
            for number, group in enumerate(groups)
        ]

    def _prepare(
        self, optimizer: torch.optim.Optimizer
    ) -> tuple[list[dict[str, Any]], defaultdict[Any, Any], list[torch.Tensor]]:
        """Return the param groups and the state of the step, and what steps alone."""
        stepped: defaultdict[Any, Any] = defaultdict(dict)
        groups = []
        all_alone: list[torch.Tensor] = []
        runs = 0
        for group, part in zip(optimizer.param_groups, self._parts, strict=True):
            tensors: list[torch.Tensor] = []
            alone = [p for p in part.alone if p.grad is not None]
            for flat_group in part.groups:
                own_runs, positions = flat_group.prepare(optimizer.state, stepped)
                tensors += [run.tensor for run in own_runs]
                alone += [flat_group.parameters[position] for position in positions]
            runs += len(tensors)
            groups.append({**group, "params": tensors + alone})
            all_alone += alone
        for parameter in all_alone:
            if parameter in optimizer.state:
                stepped[parameter] = optimizer.state[parameter]
        self.counts = FusionCounts(
            self.counts.steps + 1,
            self.counts.runs + runs,
            self.counts.alone + len(all_alone),
        )
        return groups, stepped, all_alone

    def _finish(
        self,
        optimizer: torch.optim.Optimizer,
        groups: list[dict[str, Any]],
        stepped: defaultdict[Any, Any],
        alone: list[torch.Tensor],
    ) -> None:
        """Bring parameters, state and options up to date after the step."""
        for part in self._parts:
            for flat_group in part.groups:
                flat_group.finish(optimizer.state, stepped)
        for parameter in alone:
            if parameter in stepped:
                optimizer.state[parameter] = stepped[parameter]
            else:
                optimizer.state.pop(parameter, None)
        for group, changed in zip(optimizer.param_groups, groups, strict=True):
            for key, value in changed.items():
                if key != "params" and group.get(key) is not value:
                    group[key] = value
