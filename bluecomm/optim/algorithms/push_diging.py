"""Push-DIGing: gradient tracking on digraphs without doubly stochastic weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithms.gradient_tracking import GradientTracking
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import Exchange, NeighborExchange
from bluecomm.optim.registry import register_algorithm


class _Pushing(NeighborExchange):
    """Each rank keeps ``1 / k`` and gives ``1 / k`` to each of ``k - 1`` neighbors."""

    def weights(self, round_number: int) -> Weights:
        if self._settings.has_weights():
            raise ValueError(
                "push_diging takes its weights from the topology in force; set the "
                "optimizer's attributes to None"
            )
        topology = self._comm.topology
        assert topology is not None
        targets, sources = topology.weights.dst_ranks, topology.weights.src_ranks
        share = 1 / (len(targets) + 1)
        return Weights(
            share, dict.fromkeys(sources, 1.0), dict.fromkeys(targets, share)
        )

    def matrix(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return all shares: ``C[i, j]`` is the share that ``j`` gives to ``i``."""
        topology = self._comm.topology
        assert topology is not None
        matrix = np.eye(self._comm.size)
        for source, target in topology.graph.edges:
            matrix[target, source] = 1.0
        shares: np.ndarray[Any, np.dtype[np.float64]] = matrix / matrix.sum(axis=0)
        return shares


@register_algorithm("push_diging")
class PushDIGing(GradientTracking):
    """Gradient tracking by push-sum, on a static, strongly connected digraph.

    ``C`` is column-stochastic, with equal shares. At the start ``u = x``, ``v = 1``,
    ``y = 0`` and ``g_old = 0``. In each step:

        y <- C y + g(x) - g_old,    u <- C (u + step(x, y) - x),
        v <- C v,                   x <- u / v

    Dividing by ``v`` corrects the unequal weights that ranks have in ``C``, so the
    ranks reach the optimum of the mean of their losses exactly on any such graph. All
    ranks know the graph, so each computes ``v`` itself. ``u`` and ``y`` are sent: twice
    the bytes of ``neighbor_allreduce``.

    Raises:
        ValueError: Weights are set as attributes of the optimizer.

    Source:
        Nedic, Olshevsky and Shi, "Achieving Geometric Convergence for Distributed
        Optimization over Time-Varying Graphs", SIAM J. Optimization 27 (2017),
        arXiv:1607.03218.
    """

    # u, in addition to the state of gradient tracking.
    keeps = (*GradientTracking.keeps, "biased")

    def __init__(self) -> None:
        super().__init__(order="atc")
        self._v = np.ones(0)
        self._divisor = 1.0
        self._is_new = True

    def make_exchange(self) -> Exchange:
        self._v = np.ones(self.context.comm.size)
        self._pushing = _Pushing(self.context.comm, self.context.settings, None)
        return self._pushing

    def begin(self, bucket: Bucket) -> None:
        if self._is_new:
            self.memory.of("biased", bucket).copy_(bucket.parameters.current)

    def _begin_round(self) -> None:
        super()._begin_round()
        if self._weights is not None:
            self._is_new = False
            self._divisor = float(self._v[self.context.comm.rank])
            self._v = self._pushing.matrix() @ self._v

    @torch.no_grad()
    def before_round(self, bucket: Bucket, weights: Weights) -> None:
        biased, current = self.memory.of("biased", bucket), bucket.parameters.current
        biased.mul_(1 - 1 / self._divisor).add_(current)
        current.copy_(biased)

    @torch.no_grad()
    def after_round(self, bucket: Bucket) -> None:
        biased, current = self.memory.of("biased", bucket), bucket.parameters.current
        biased.copy_(current)
        current.div_(float(self._v[self.context.comm.rank]))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "v": self._v.tolist(), "is_new": self._is_new}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._v = np.array(state.get("v", np.ones(self.context.comm.size)))
        self._is_new = state.get("is_new", True)
