"""Bagua's low-precision decentralized algorithm: a ring that exchanges 8-bit codes."""

from __future__ import annotations

import torch

from bluecomm.compression import MinMaxUInt8
from bluecomm.optim.algorithms.coded_averaging import CodedAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.exchanges.machine_ring import MachineRing
from bluecomm.optim.registry import register_algorithm
from bluecomm.topology import StaticTopology
from bluecomm.topology.graph import graph_from_edges


@register_algorithm("low_precision_decentralized")
class LowPrecisionDecentralized(CodedAveraging):
    """Averaging of parameters on a ring, with differences of 8 bits per value.

    Each rank publishes its parameters ``w`` to its left and right neighbor by their
    changes, and keeps copies ``L`` and ``R`` of what these have published. After the
    user's step has made ``x`` of ``w``:

        d = x - w + (L + w + R)/3 - w,    q = Q(d),
        w <- w + q,    L <- L + q_left,    R <- R + q_right,    x <- w

    So ``w`` aims at the mean of the neighborhood and the step, and what ``Q`` has
    rounded away is part of the next difference. With one neighbor, ``L = R``. ``L`` is
    equal to the left neighbor's ``w`` bit by bit. All three are 0 before the first
    round, in which ``Q`` is the identity; Bagua begins with copies of each rank's own
    parameters, which needs equal ones. ``Q`` is ``MinMaxUInt8``.

    Between machines (``hierarchical=True``), which is Bagua's default, ``x`` is the
    mean of the parameters on a machine, in full precision. The first ranks of the
    machines form the ring and keep the state, and all ranks of a machine get ``w``.
    Instead of 1/3, machine ``k`` with ``n_k`` ranks gives its neighbor ``j`` the weight
    ``min(1, n_j / n_k) / 3``, and itself the rest. So each rank counts the same; in
    Bagua the ranks of small machines have more weight. On a single machine it is the
    exact mean of all ranks.

    In a world of one it is the plain optimizer.

    Args:
        hierarchical: Whether the ring consists of machines, which send their mean.
        uneven_inputs: Let ranks ``join`` when they run out of data.

    Source:
        Tang et al., "Communication Compression for Decentralized Training", NeurIPS
        2018, arXiv:1803.06443 (DCD-PSGD). Gan et al., "BAGUA: Scaling up Distributed
        Learning with System Relaxations", VLDB 2021, arXiv:2107.01499.
    """

    works_on_devices = True
    keeps = ("published", "left", "right")

    def __init__(
        self, *, hierarchical: bool = False, uneven_inputs: bool = False
    ) -> None:
        super().__init__(
            MinMaxUInt8(), hierarchical=hierarchical, uneven_inputs=uneven_inputs
        )
        # The weights of the left and the right neighbor.
        self._shares = (1 / 3, 1 / 3)

    def make_exchange(self) -> Exchange:
        if not self._is_hierarchical:
            self._topology = _ring(self.context.comm.size)
        exchange = super().make_exchange()
        if isinstance(exchange, MachineRing):
            self._shares = exchange.shares
        return exchange

    def difference(self, bucket: Bucket, current: torch.Tensor) -> torch.Tensor:
        published, left, right = (self.memory.of(name, bucket) for name in self.keeps)
        to_left, to_right = self._shares
        wanted = current.sub(published, alpha=1 + (to_left + to_right))
        return wanted.add_(left, alpha=to_left).add_(right, alpha=to_right)

    def add_own(self, bucket: Bucket, weight: float, change: torch.Tensor) -> None:
        self.memory.of("published", bucket).add_(change)

    def add_neighbor(
        self, bucket: Bucket, member: int, weight: float, change: torch.Tensor
    ) -> None:
        comm = self.publishers
        for name, hop in (("left", -1), ("right", 1)):
            if (comm.rank + hop) % comm.size == member:
                self.memory.of(name, bucket).add_(change)

    def combined(self, bucket: Bucket, current: torch.Tensor) -> torch.Tensor:
        return self.memory.of("published", bucket)


def _ring(size: int) -> StaticTopology:
    """Return the ring in which the left and the right neighbor have the weight 1/3."""
    weights: dict[tuple[int, int], float] = {}
    for rank in range(size):
        for hop in (-1, 0, 1):
            edge = ((rank + hop) % size, rank)
            weights[edge] = weights.get(edge, 0.0) + 1 / 3
    return StaticTopology(
        graph_from_edges(size, [(*edge, weight) for edge, weight in weights.items()])
    )
