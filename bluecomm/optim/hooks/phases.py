"""Records forward, backward and step in the timeline, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from bluecomm.optim.hooks.backward import queue_callback

FORWARD, BACKWARD, STEP = "FORWARD", "BACKWARD", "STEP"


class PhaseRecorder(Protocol):
    """Records events; the engine provides it."""

    def begin(self, activity: str) -> None:
        """Begin an activity on this thread."""

    def end(self, tensor: str, activity: str) -> None:
        """End the last activity of that name; ``tensor`` is empty."""


class Phases:
    """Records the passes of one optimizer's models.

    As a context manager, which may be entered any number of times, it records the
    user's own step. The hooks run with cold caches, where each call of a Python
    function costs about a microsecond.

    A backward pass begins with the gradient of a model's output. It ends when autograd
    has finished, before the wait for the gradients of other ranks.

    Args:
        recorder: Records the events; ``None`` in copies, which are never turned on.
        models: Models whose passes are recorded once ``turn_on`` has been called.
    """

    def __init__(
        self, recorder: PhaseRecorder | None, models: Sequence[nn.Module]
    ) -> None:
        self._recorder = recorder
        self._models = tuple(models)
        self._is_on = False
        self._handles: list[RemovableHandle] = []
        self._passes: set[int] = set()

    def __reduce__(self) -> tuple[type[Phases], tuple[None, tuple[()]]]:
        # A copy of a model is a plain model, whose passes are not recorded.
        return Phases, (None, ())

    def turn_on(self) -> None:
        """Start recording."""
        if self._is_on:
            return
        self._is_on = True
        for model in self._models:
            self._handles += [
                model.register_forward_pre_hook(self._before_forward),
                model.register_forward_hook(self._after_forward, always_call=True),
            ]

    def turn_off(self) -> None:
        """Stop recording; a pass under way is recorded to its end."""
        self._is_on = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> None:
        self._begin(STEP)

    def __exit__(self, *failure: object) -> None:
        self._end(STEP)

    def _begin(self, activity: str) -> None:
        if self._recorder is not None and self._is_on:
            self._recorder.begin(activity)

    def _end(self, activity: str) -> None:
        if self._recorder is not None:
            self._recorder.end("", activity)

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if not is_compiling():
            self._begin(FORWARD)

    def _after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if not self._is_on or is_compiling():
            return
        self._end(FORWARD)
        # Walking a tree takes several microseconds, and most outputs are one tensor.
        leaves = (
            (outputs,) if isinstance(outputs, torch.Tensor) else tree_leaves(outputs)
        )
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                # Like a hook on the tensor, with less Python code around it.
                leaf.grad_fn.register_prehook(self._on_output_gradients)

    def _on_output_gradients(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        task = torch._C._current_graph_task_id()
        if task in self._passes:
            return
        self._passes.add(task)
        self._begin(BACKWARD)
        queue_callback(lambda: self._on_end(task))

    def _on_end(self, task: int) -> None:
        self._passes.discard(task)
        self._end(BACKWARD)
