"""A flat group: parameters that can be stepped as one tensor."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.fused.flat_memory import FlatMemory
from bluecomm.optim.fused.flat_state import FlatState, State


@dataclasses.dataclass
class Run:
    """Neighbors in a flat group that are stepped as one tensor.

    Attributes:
        first: Position of the first parameter.
        stop: Position behind the last.
        tensor: Their values, with their gradients.
        entry: Their state, if there is any.
    """

    first: int
    stop: int
    tensor: nn.Parameter
    entry: dict[str, Any] | None


class FlatGroup:
    """The parameters of one param group that have one dtype and device.

    Parameters without a gradient are not stepped, and those whose scalars differ, such
    as the number of their steps, are not stepped together. They divide the group into
    runs. If all parameters have gradients in each step, there is one run.

    Args:
        slots: The parameters.
        numel: Number of elements, padding included.
        moves: For each parameter, whether ``p.data`` becomes a view of flat memory.
        kinds: See ``FlatState``.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        numel: int,
        moves: Sequence[bool],
        kinds: dict[str, bool],
    ) -> None:
        self.parameters = [slot.parameter for slot in slots]
        self._slots = slots
        self._dtype = self.parameters[0].dtype
        self._memory = FlatMemory(slots, numel, moves)
        self._state = FlatState(slots, numel, kinds)
        self._present: list[bool] = []
        self._runs: list[Run] = []
        self._before: list[dict[str, Any] | None] = []

    def holds(self, position: int) -> bool:
        """Return whether ``p.data`` of a parameter is in its flat memory."""
        return self._memory.holds(position)

    def prepare(self, state: State, stepped: State) -> tuple[list[Run], list[int]]:
        """Prepare a step.

        Args:
            state: The optimizer's state.
            stepped: Receives the entries of the runs.

        Returns:
            The runs, and the positions of parameters that have to be stepped alone,
            because their gradient or state is sparse, or the gradient has another
            dtype.

        Raises:
            RuntimeError: A parameter or its state no longer fits.
        """
        is_current = self._state.is_current(state)
        if not is_current:
            self._state.adopt(state)
        gradients = [parameter.grad for parameter in self.parameters]
        present = self._fit(gradients)
        alone = []
        if not all(present):
            alone = [
                position
                for position, gradient in enumerate(gradients)
                if gradient is not None and not present[position]
            ]
            for position in alone:
                self._memory.check_kind(position)
        if not is_current or present != self._present:
            self._present = present
            self._runs = self._divide()
        self._memory.copy_in(gradients, present)
        for run in self._runs:
            if run.entry is not None:
                stepped[run.tensor] = run.entry
        self._before = [
            None if run.entry is None else dict(run.entry) for run in self._runs
        ]
        return self._runs, alone

    def finish(self, state: State, stepped: State) -> None:
        """Bring parameters and state up to date after a step.

        Args:
            state: The optimizer's state.
            stepped: The entries of the runs after the step.
        """
        for run in self._runs:
            values = self._memory.values[self._part(run.first, run.stop)]
            if run.tensor.data_ptr() != values.data_ptr():
                # The step has assigned p.data instead of changing it.
                values.copy_(run.tensor.data)
                run.tensor.data = values
        self._memory.copy_out(self._present)
        for run, before in zip(self._runs, self._before, strict=True):
            run.entry = stepped.get(run.tensor)
            self._state.take_back(state, run.first, run.stop, before, run.entry)

    def forget(self) -> None:
        """Divide the group anew in the next step, because this one has failed."""
        self._present = []

    def _fit(self, gradients: Sequence[torch.Tensor | None]) -> list[bool]:
        """Return for each parameter whether it has a gradient that can be copied in."""
        dtype, strided = self._dtype, torch.strided
        present = [
            gradient is not None
            and gradient.dtype is dtype
            and gradient.layout is strided
            for gradient in gradients
        ]
        for position in self._state.unfit:
            present[position] = False
        return present

    def _divide(self) -> list[Run]:
        signature = self._state.signature()
        runs = []
        for is_there, members in itertools.groupby(
            range(len(self._slots)),
            lambda position: self._present[position] and (signature[position],),
        ):
            if is_there:
                first, *others = members
                runs.append(self._run(first, (others or [first])[-1] + 1))
        return runs

    def _part(self, first: int, stop: int) -> slice:
        return slice(self._slots[first].offset, self._slots[stop - 1].end)

    def _run(self, first: int, stop: int) -> Run:
        part = self._part(first, stop)
        tensor = nn.Parameter(self._memory.values[part])
        tensor.grad = self._memory.gradients[part]
        return Run(first, stop, tensor, self._state.part(first, stop))
