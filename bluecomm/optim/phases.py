"""Forward, backward and step in the timeline, where one is made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from bluecomm.optim.backward import queue_callback

FORWARD, BACKWARD, STEP = "FORWARD", "BACKWARD", "STEP"


class Recorder(Protocol):
    """What takes the events: the engine's."""

    def begin(self, activity: str) -> None:
        """An activity begins on this thread."""

    def end(self, *, activity: str) -> None:
        """The last activity of that name ends."""


class Phases:
    """Tells a recorder what one optimizer's models do.

    A backward pass begins with the gradient of a model's output and ends when autograd
    is through, before what waits at its end for gradients of other ranks.

    Args:
        recorder: Takes the events.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._passes: set[int] = set()

    def attach(self, models: Sequence[nn.Module]) -> list[RemovableHandle]:
        """Watch the forward passes of models; return handles that end it."""
        handles = []
        for model in models:
            handles += [
                model.register_forward_pre_hook(self._before_forward),
                model.register_forward_hook(self._after_forward, always_call=True),
            ]
        return handles

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Show the user's own step."""
        self._recorder.begin(STEP)
        try:
            yield
        finally:
            self._recorder.end(activity=STEP)

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._recorder.begin(FORWARD)

    def _after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._recorder.end(activity=FORWARD)
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                # torch has no annotations for it.
                hook: Any = leaf.register_hook
                hook(self._on_output_gradient)

    def _on_output_gradient(self, gradient: torch.Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task in self._passes:
            return
        self._passes.add(task)
        self._recorder.begin(BACKWARD)
        queue_callback(lambda: self._on_end(task))

    def _on_end(self, task: int) -> None:
        self._passes.discard(task)
        self._recorder.end(activity=BACKWARD)
