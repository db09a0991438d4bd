"""Models with real arithmetic, or on an emulated accelerator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bluecomm.bench.training.models import Layer

# Shares of a step's time: the backward pass computes two products (for weights and for
# inputs) where the forward pass computes one.
_FORWARD_SHARE = 1 / 3


class RealModel(nn.Module):
    """Runs the layers in a chain; inputs of a wrong shape become their mean."""

    def __init__(self, layers: Sequence[Layer], batch_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer.make() for layer in layers)
        self._shapes = [torch.Size((batch_size, *x.input_shape)) for x in layers]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        for layer, shape in zip(self.layers, self._shapes, strict=True):
            x = layer(x if x.shape == shape else x.mean().expand(shape))
        return x.square().mean()


class EmulatedModel(nn.Module):
    """Has the layers' parameters, and an accelerator that only takes time.

    Args:
        layers: The layers. A layer takes time in proportion to its multiplications.
        step_s: Seconds of the forward and backward pass together.
        gradient: Value of each element of each gradient.
    """

    def __init__(
        self, layers: Sequence[Layer], step_s: float, gradient: float = 1e-3
    ) -> None:
        super().__init__()
        self._accelerator = _Accelerator()
        work = [layer.multiplications() for layer in layers]
        self.layers = nn.ModuleList(
            _EmulatedLayer(layer, self._accelerator, step_s * own / sum(work), gradient)
            for layer, own in zip(layers, work, strict=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        self._accelerator.begin()
        for layer in self.layers:
            x = layer(x)
        return x.sum()


class EmulatedOptimizer(torch.optim.Optimizer):
    """Does nothing: the accelerator's step includes the optimizer's update."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        """Leave the parameters as they are."""


class _Accelerator:
    """Runs queued pieces of work one after the other.

    A late host does not make the accelerator idle, because the next kernels wait in its
    queue. Only the beginning of a step waits for the host.
    """

    def __init__(self) -> None:
        self._ready_at = 0.0

    def begin(self) -> None:
        """Start a step."""
        self._ready_at = time.perf_counter()

    def run(self, seconds: float) -> None:
        """Queue a piece of work and sleep until it has finished."""
        self._ready_at += seconds
        left = self._ready_at - time.perf_counter()
        if left > 0:
            time.sleep(left)


class _EmulatedLayer(nn.Module):
    """Parameters whose gradients appear when the accelerator has finished the layer."""

    def __init__(
        self, layer: Layer, accelerator: _Accelerator, step_s: float, gradient: float
    ) -> None:
        super().__init__()
        self.values = nn.ParameterList(
            nn.Parameter(torch.zeros(shape)) for shape in layer.shapes()
        )
        # The accelerator writes its results here; this costs no core.
        self.gradients = [torch.full_like(p, gradient) for p in self.values]
        self.accelerator = accelerator
        self.forward_s = step_s * _FORWARD_SHARE
        self.backward_s = step_s - self.forward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` after the time of the layer's forward pass."""
        result: torch.Tensor = _Work.apply(self, x, *self.values)  # type: ignore[no-untyped-call]
        return result


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layer: _EmulatedLayer, x: torch.Tensor, *values: torch.Tensor
    ) -> torch.Tensor:
        ctx.layer = layer
        layer.accelerator.run(layer.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        layer: _EmulatedLayer = ctx.layer
        layer.accelerator.run(layer.backward_s)
        return None, gradient, *(one.detach() for one in layer.gradients)
