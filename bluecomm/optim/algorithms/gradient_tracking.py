"""Gradient tracking: every rank tracks the mean of all ranks' gradients."""

from __future__ import annotations

from typing import Any

import torch

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithm import Round
from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.doubly_stochastic import DoublyStochasticExchange
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm
from bluecomm.optim.sparse_gradients import make_dense


@register_algorithm("gradient_tracking")
class GradientTracking(StatefulAveraging):
    """Gradient tracking (DIGing), with a doubly stochastic ``W`` that may change.

    ``y = 0`` and ``g_old = 0`` at the start. In each step:

        y <- W y + g(x) - g_old,
        x <- step(W x, y)  (order "cta", DIGing)  or  x <- W step(x, y)  ("atc")

    ``sum_i y_i = sum_i g_i(x_i)`` always holds, so ``y`` becomes the mean gradient as
    the ranks come to agree. ``p.grad`` is ``y`` when the user's optimizer steps. ``x``
    and ``y`` are sent: twice the bytes of ``neighbor_allreduce``. In steps without a
    round ``W`` is the identity.

    Args:
        order: ``"atc"`` or ``"cta"``.
        topology: As for ``neighbor_allreduce``.

    Source:
        Nedic, Olshevsky and Shi, "Achieving Geometric Convergence for Distributed
        Optimization over Time-Varying Graphs", SIAM J. Optimization 27 (2017),
        arXiv:1607.03218 (CTA). Pu and Nedic, "Distributed Stochastic Gradient Tracking
        Methods", Mathematical Programming 187 (2021), arXiv:1805.11454 (ATC).
    """

    works_on_devices = True
    communication_type = CommunicationType.neighbor_allreduce
    survives_losses = True
    trains_apart = True
    admits_newcomers = True
    honours = StatefulAveraging.honours | {"sparse_as_dense"}
    may_join = False
    # g_old and y; W y is scratch.
    keeps: tuple[str, ...] = ("gradient", "tracked")
    scratch = ("mixed",)
    shares = ("tracked", "mixed")

    def __init__(self, *, order: str = "atc", topology: object = None) -> None:
        super().__init__(order=order, topology=topology)
        self._tracking = Round()
        # The weights for y, if they are not those for x.
        self._tracking_weights: Weights | None = None
        self._is_updated = False

    def make_exchange(self) -> Exchange:
        return DoublyStochasticExchange(
            self.context.comm,
            self.context.settings,
            self._topology,
            method="gradient_tracking",
        )

    def restart(self) -> None:
        # y of those that are left need not sum to their gradients: y = g, as at first.
        self._finish_tracking()
        for bucket in self._buckets:
            gradient = self.memory.of("gradient", bucket)
            self.memory.of("tracked", bucket).copy_(gradient)

    def before_step(self) -> None:
        super().before_step()
        self._is_updated = False

    @torch.no_grad()
    def before_update(self) -> None:
        """Replace the gradients by ``y``.

        Raises:
            RuntimeError: The user's optimizer evaluates its closure a second time.
            TypeError: A gradient is sparse, and ``sparse_as_dense`` was not given.
        """
        self._check_dense()
        if self.context.comm.size == 1:
            return
        if self._is_updated:
            raise RuntimeError(
                "gradient_tracking: the optimizer evaluates its closure several times "
                "in a step, and only one gradient of each step can be tracked; use "
                "momentum_tracking, which tracks what the step does"
            )
        self._is_updated = True
        self._finish_tracking()
        for bucket in self._buckets:
            tracked = self.memory.of("tracked", bucket)
            tracked.sub_(self.memory.of("gradient", bucket))
            self._keep_gradients(bucket)
            tracked.add_(self.memory.of("gradient", bucket))
            self._hand_out(bucket)

    def after_step(self) -> None:
        super().after_step()
        if not self.context.schedule.is_due or self._weights is None:
            return
        self._finish_tracking()
        for bucket in self._buckets:
            handle = self._exchanges[self._kind].start(
                self._tracking_weights or self._weights,
                self.memory.of("tracked", bucket),
                self.memory.of("mixed", bucket),
                f"{bucket.name}.tracked",
            )
            self._tracking.add(bucket, handle)

    def drain(self) -> None:
        super().drain()
        self._finish_tracking()

    def finalize(self) -> None:
        super().finalize()
        self._finish_tracking()

    def state_dict(self) -> dict[str, Any]:
        self._finish_tracking()
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._finish_tracking()
        super().load_state_dict(state)

    def _finish_tracking(self) -> None:
        """Wait for ``W y`` if it is under way, and make it the new ``y``."""
        for bucket, mixed in self._tracking.wait():
            self.memory.of("tracked", bucket).copy_(mixed)

    def _check_dense(self) -> None:
        """Make sparse gradients dense if the user agrees, since ``y`` is dense."""
        for slot in (slot for bucket in self._buckets for slot in bucket.slots):
            if self.context.options.sparse_as_dense:
                make_dense([slot.parameter])
            elif (grad := slot.parameter.grad) is not None and grad.is_sparse:
                raise TypeError(
                    f"{type(self).__name__}: the gradient of {slot.name!r} is sparse, "
                    "but the tracked gradient that replaces it is dense; pass "
                    "sparse_as_dense=True and use an optimizer for dense gradients, or "
                    "use an algorithm that averages parameters, such as "
                    "neighbor_allreduce or momentum_tracking"
                )

    def _keep_gradients(self, bucket: Bucket) -> None:
        gradients = self.memory.of("gradient", bucket)
        for slot in bucket.slots:
            gradient = slot.parameter.grad
            if gradient is None:
                slot.view_of(gradients).zero_()
            else:
                slot.view_of(gradients).copy_(gradient)

    def _hand_out(self, bucket: Bucket) -> None:
        """Make ``y`` the gradients, except where no rank ever had a gradient."""
        tracked = self.memory.of("tracked", bucket)
        for slot in bucket.slots:
            parameter, view = slot.parameter, slot.view_of(tracked)
            if parameter.grad is not None:
                parameter.grad.copy_(view)
            elif bool(view.any()):
                parameter.grad = view.clone()
