"""Push-DIGing: gradient tracking on digraphs without doubly stochastic weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithms.gradient_tracking import GradientTracking
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import Exchange, NeighborExchange
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Communicator
from bluecomm.topology import TopologySchedule

Matrix = NDArray[np.float64]


class _Pushing(NeighborExchange):
    """Each rank keeps ``1 / k`` and gives ``1 / k`` to each of ``k - 1`` neighbors."""

    _left: Sequence[int] = ()
    _schedule: TopologySchedule | None = None

    def move(self, comm: Communicator) -> None:
        super().move(comm)
        self._left, self._schedule = (), None

    def regroup(self, left: Sequence[int]) -> None:
        self._left, self._schedule = left, self._schedule_for(left)

    def weights(self, round_number: int) -> Weights:
        return self.weights_of(self.shares())

    def shares(self) -> Matrix:
        """Return all shares: ``C[i, j]`` is the share that ``j`` gives to ``i``.

        Raises:
            ValueError: Weights are set as attributes of the optimizer.
        """
        if self._settings.has_weights():
            raise ValueError(
                "push_diging takes its weights from the topology in force; set the "
                "optimizer's attributes to None"
            )
        topology = self._comm.topology
        assert topology is not None
        if self._schedule is not None:
            matrix = (self._schedule.matrix(0) > 0).astype(float)
        else:
            self._left = range(self._comm.size)
            matrix = np.zeros((self._comm.size, self._comm.size))
            for source, target in topology.graph.edges:
                matrix[target, source] = 1.0
        np.fill_diagonal(matrix, 1.0)
        shares: Matrix = matrix / matrix.sum(axis=0)
        return shares

    def own(self, v: Matrix) -> float:
        """Return this rank's entry of a vector over those who are left."""
        return float(v[self._left.index(self._comm.rank)])

    def weights_of(self, matrix: Matrix) -> Weights:
        """Return this rank's row of a matrix over those who are left, as weights."""
        me = self._left.index(self._comm.rank)
        others = [i for i in range(len(self._left)) if i != me]
        return Weights(
            float(matrix[me, me]),
            {self._left[j]: float(matrix[me, j]) for j in others if matrix[me, j]},
            [self._left[i] for i in others if matrix[i, me]],
        )


@register_algorithm("push_diging")
class PushDIGing(GradientTracking):
    """Gradient tracking by push-sum, on a static, strongly connected digraph.

    ``C`` is column-stochastic, with equal shares. At the start ``u = x``, ``v = 1``,
    ``y = 0`` and ``g_old = 0``. In each step:

        y <- C y + g(x) - g_old,    u <- C (u + step(x, y) - x),
        v <- C v,                   x <- u / v

    Dividing by ``v`` corrects the unequal weights that ranks have in ``C``, so the
    ranks reach the optimum of the mean of their losses exactly on any such graph. All
    ranks know the graph, so each computes ``v`` itself. With ``v' = C v``, the same
    ``x`` is an average, whose weights sum to 1, so ``u`` need not be kept:

        x_i <- sum_j (C_ij v_j / v'_i) (x_j + (step(x_j, y_j) - x_j) / v_j)

    ``x`` and ``y`` are sent: twice the bytes of ``neighbor_allreduce``.

    Raises:
        ValueError: Weights are set as attributes of the optimizer.

    Source:
        Nedic, Olshevsky and Shi, "Achieving Geometric Convergence for Distributed
        Optimization over Time-Varying Graphs", SIAM J. Optimization 27 (2017),
        arXiv:1607.03218.
    """

    works_on_devices = True
    # The parameters before the step, in addition to the state of gradient tracking.
    keeps = (*GradientTracking.keeps, "before")

    def __init__(self) -> None:
        super().__init__(order="atc")
        self._v = np.ones(0)
        self._divisor = 1.0

    def make_exchange(self) -> Exchange:
        self._v = np.ones(self.context.comm.size)
        self._pushing = _Pushing(self.context.comm, self.context.settings, None)
        return self._pushing

    def restart(self) -> None:
        super().restart()
        self._v = np.ones(len(self._pushing.shares()))

    def begin(self, bucket: Bucket) -> None:
        self.memory.of("before", bucket).copy_(bucket.parameters.current)

    def _begin_round(self, number: int) -> None:
        super()._begin_round(number)
        if self._weights is None:
            return
        self._tracking_weights = self._weights
        shares, v = self._pushing.shares(), self._v
        self._v = shares @ v
        self._weights = self._pushing.weights_of(shares * v / self._v[:, None])
        self._divisor = self._pushing.own(v)

    @torch.no_grad()
    def before_round(self, bucket: Bucket, weights: Weights) -> None:
        before, current = self.memory.of("before", bucket), bucket.parameters.current
        current.sub_(before).div_(self._divisor).add_(before)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "v": self._v.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._v = np.array(state.get("v", np.ones(self.context.comm.size)))
