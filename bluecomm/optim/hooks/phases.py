"""Forward, backward and step in the timeline, where one is made."""

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


class Recorder(Protocol):
    """What takes the events: the engine's."""

    def begin(self, activity: str) -> None:
        """An activity begins on this thread."""

    def end(self, tensor: str, activity: str) -> None:
        """The last activity of that name ends; ``tensor`` is empty."""


class Phases:
    """Tells a recorder what one optimizer's models do.

    As a context manager, entered as often as one likes, it shows the user's own step.
    All of this runs with cold caches, where each Python function called costs about a
    microsecond.

    A backward pass begins with the gradient of a model's output and ends when autograd
    is through, before what waits at its end for gradients of other ranks.

    Args:
        recorder: Takes the events; ``None`` in copies, which are never turned on.
        models: Whose passes are shown, once ``turn_on`` has been called.
    """

    def __init__(self, recorder: Recorder | None, models: Sequence[nn.Module]) -> None:
        self._recorder = recorder
        self._models = tuple(models)
        self._is_on = False
        self._handles: list[RemovableHandle] = []
        self._passes: set[int] = set()

    def __reduce__(self) -> tuple[type[Phases], tuple[None, tuple[()]]]:
        # A copy of a model is a plain model: what it does is not shown.
        return Phases, (None, ())

    def turn_on(self) -> None:
        """Begin to watch."""
        if self._is_on:
            return
        self._is_on = True
        for model in self._models:
            self._handles += [
                model.register_forward_pre_hook(self._before_forward),
                model.register_forward_hook(self._after_forward, always_call=True),
            ]

    def turn_off(self) -> None:
        """Watch no longer; a pass that is under way is shown to its end."""
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
        # Walking through a tree takes several microseconds, and most have one leaf.
        leaves = (
            (outputs,) if isinstance(outputs, torch.Tensor) else tree_leaves(outputs)
        )
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                # Like the tensor's own hook, with less Python around it.
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
