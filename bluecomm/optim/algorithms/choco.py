"""CHOCO-SGD: averaging with neighbors by codes of any codec, with error feedback."""

from __future__ import annotations

import torch

from bluecomm.compression import Codec, MinMaxUInt8
from bluecomm.optim.algorithms.coded_averaging import CodedAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.registry import register_algorithm


@register_algorithm("choco")
class Choco(CodedAveraging):
    """CHOCO-SGD, in its form that needs little memory, on any symmetric graph.

    Each rank publishes ``h``, which follows its parameters, by codes of the difference,
    and keeps ``s``, the average of its neighbors' ``h`` and its own. With ``h = s = 0``
    at the start, after the user's step has made ``x``:

        q = Q(x - h),    h <- h + q,    s <- s + W q,    x <- x + gamma (s - h)

    What ``Q`` leaves out stays in ``x - h`` and is sent later, so any codec converges
    if ``gamma`` is small enough. The mean of all ``x`` changes by the steps only. In
    the first round ``Q`` is the identity.

    The theory has ``|Q(v) - v|**2 <= (1 - omega) |v|**2`` and proves convergence for

        gamma = delta**2 omega
                / (16 delta + delta**2 + 4 beta**2 + 2 delta beta**2 - 8 delta omega)

    with the spectral gap ``delta`` of ``W`` and ``beta = |I - W|_2``. This is far below
    what works. Without loss, 1 is best, and then it is ``neighbor_allreduce`` in ATC
    order. The more ``Q`` leaves out, the smaller ``gamma`` must be: if it is too large,
    the ranks drift apart, also those of a converged training. docs/methods.md has
    values that work.

    ``h`` and ``s`` are float64: they are sums of all changes, and an error that float32
    would add to ``s`` moves the mean in each later round.

    Between machines (``hierarchical=True``), ``x`` is the mean of the parameters on a
    machine, in full precision, and the machines form the ring of
    ``low_precision_decentralized``, whose ``W`` does not change the mean over all
    ranks. The first ranks of the machines keep ``h`` and ``s``. On a single machine it
    is the exact mean of all ranks.

    Args:
        codec: A codec of ``bluecomm.compression``. Default: ``MinMaxUInt8()``, the
            codec that works with ``gamma=1`` for all values and on all graphs.
        gamma: Consensus step size, above 0 and at most 1.
        topology: A static graph or schedule. Default: the topology in force, as for
            ``exact_diffusion``.
        hierarchical: Whether the ranks of a machine average exactly, and machines send
            codes of their mean.
        uneven_inputs: Let ranks ``join`` when they run out of data.

    Raises:
        TypeError: ``codec`` is no codec.
        ValueError: ``gamma`` is out of its range, the codec cannot encode a bucket,
            ``W`` is not symmetric and doubly stochastic, or there is a ``topology``
            with ``hierarchical``.

    Source:
        Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip
        Algorithms with Compressed Communication", ICML 2019, arXiv:1902.00340.
    """

    works_on_devices = True
    keeps = ("published", "mixed")
    at_least = torch.float64

    def __init__(
        self,
        *,
        codec: Codec | None = None,
        gamma: float = 1.0,
        topology: object = None,
        hierarchical: bool = False,
        uneven_inputs: bool = False,
    ) -> None:
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be above 0 and at most 1, got {gamma}")
        if hierarchical and topology is not None:
            raise ValueError(
                "choco: with hierarchical=True the machines form a ring; leave out "
                "topology= or hierarchical="
            )
        super().__init__(
            MinMaxUInt8() if codec is None else codec,
            hierarchical=hierarchical,
            topology=topology,
            uneven_inputs=uneven_inputs,
        )
        self._gamma = gamma

    def difference(self, bucket: Bucket, current: torch.Tensor) -> torch.Tensor:
        return current - self.memory.of("published", bucket)

    def add_own(self, bucket: Bucket, weight: float, change: torch.Tensor) -> None:
        self.memory.of("published", bucket).add_(change)
        self.memory.of("mixed", bucket).add_(change, alpha=weight)

    def add_neighbor(
        self, bucket: Bucket, member: int, weight: float, change: torch.Tensor
    ) -> None:
        self.memory.of("mixed", bucket).add_(change, alpha=weight)

    def combined(self, bucket: Bucket, current: torch.Tensor) -> torch.Tensor:
        published, mixed = (self.memory.of(name, bucket) for name in self.keeps)
        return current.add(mixed - published, alpha=self._gamma)
