"""Averaging of gradients over all ranks, as in Horovod and DDP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bluecomm.ops.reduce_op import Average
from bluecomm.ops.refusal import Operation
from bluecomm.optim.algorithm import Round
from bluecomm.optim.algorithms.gradient_averaging import GradientAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.gradient_exchange import (
    GradientExchange,
    is_split,
    start_exchange,
)
from bluecomm.optim.registry import register_algorithm
from bluecomm.optim.sparse_gradients import SparseGradients
from bluecomm.optim.split_allreduce import name_of_tail

# Active ranks are counted in groups of this size. A bfloat16 (8 bits) still gives the
# exact count: a mean over the ranks is rounded by at most 1/512 of the count.
_COUNTED_TOGETHER = 128


@register_algorithm("gradient_allreduce")
class GradientAllreduce(GradientAveraging):
    """Centralized training: ``x_i <- step(x_i, mean over ranks j of g_j(x_j))``.

    Ranks that start equal stay equal. The mean is over the ranks that have not joined.
    A rank without a gradient for a parameter counts as zero; a parameter without a
    gradient on any rank is not stepped. ``op=Sum`` gives the sum instead, and
    ``op=Adasum`` an adaptive sum of each parameter's gradients (see ``ReduceOp``).

    Sparse gradients stay sparse: all ranks gather their indices and values. The
    optimizer finds layers with ``sparse=True`` in the models. Any other parameter with
    sparse gradients takes space in a bucket until its first exchange.

    Source:
        Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in
        TensorFlow", arXiv:1802.05799. Li et al., "PyTorch Distributed", VLDB 2020.
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys
        2021, arXiv:2006.02924.
    """

    works_on_devices = True
    works_in_backward = True
    survives_losses = True
    admits_newcomers = True
    # The last bucket is sent when no computation is left to overlap with, so buckets
    # are smaller than in the other algorithms.
    default_bucket_nbytes = 4 << 20
    honours = frozenset(
        {
            "allreduce_algorithm",
            "backward_passes_per_step",
            "compression",
            "gradient_predivide_factor",
            "num_steps_per_communication",
            "op",
            "sparse_as_dense",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self._round = Round()
        self._started: dict[Bucket, GradientExchange] = {}

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        self._sparse = SparseGradients(self.context)
        if not self.follows_backward():
            return
        for bucket in buckets:
            known = [
                position
                for position, slot in enumerate(bucket.slots)
                if id(slot.parameter) in self.context.sparse_parameters
            ]
            self._lay_out(bucket, known)

    def follows_backward(self) -> bool:
        # In a world of one the rank's own gradients are the mean. More may join it.
        comm = self.context.comm
        return comm.size > 1 or comm.world.assignment.respawns

    def move(self) -> None:
        self._sparse = SparseGradients(self.context)

    def joins_in_engine(self) -> bool:
        return not self.follows_backward() or not any(
            bucket.gradients.sparse for bucket in self.buckets
        )

    def refused_join(self) -> Iterator[Operation]:
        if self.context.comm.size == 1:
            return
        for bucket in self.buckets:
            name = name_of_gradients(bucket)
            if self._is_split(bucket):
                yield "allreduce", name_of_tail(name), None
            yield "allreduce", name, None
            for position in sorted(bucket.gradients.sparse):
                yield from self._sparse.refused(bucket, position)

    def _lay_out(self, bucket: Bucket, sparse: Sequence[int]) -> None:
        """Allocate a bucket's memory, with none for the sparse gradients."""
        for position in sparse:
            self._sparse.check(bucket, position)
        as_dense = self.context.options.sparse_as_dense
        groups = -(-self.context.comm.size // _COUNTED_TOGETHER)
        # A round that a loss breaks off is repeated from the same gradients.
        halves = 2 if self._survives else 1
        bucket.lay_out_gradients(groups, None if as_dense else sparse, halves)

    def _is_split(self, bucket: Bucket) -> bool:
        """Return whether the flags of a bucket travel apart from its gradients."""
        return is_split(self.context, bucket.gradients)

    @property
    def _survives(self) -> bool:
        return self.context.comm.world.members.survives_losses

    def start(self, bucket: Bucket, *, is_active: bool) -> None:
        gradients = bucket.gradients
        gradients.counters.zero_()
        group = self.context.comm.rank // _COUNTED_TOGETHER
        gradients.counters[group] = float(is_active)
        self._start_flat(bucket)
        for position in sorted(gradients.sparse):
            self._sparse.start(bucket, position, is_active=is_active)

    def _start_flat(self, bucket: Bucket) -> None:
        """Start the exchange of a bucket's flat memory."""
        context, gradients = self.context, bucket.gradients
        if not self._round:
            self._round.begin_together(
                context.comm,
                f"{context.name}.gradients",
                sum(1 + self._is_split(bucket) for bucket in self.buckets),
                in_background=False,
            )
        with self._round.starting():
            exchange = self._started[bucket] = start_exchange(
                context,
                gradients,
                name_of_gradients(bucket),
                keeps_input=self._survives,
            )
        self._round.add(bucket, exchange.handle)

    def finish(self, *, is_active: bool) -> bool:
        options, others_active = self.context.options, False
        started, self._started = self._started, {}
        try:
            results = self._round.wait()
            for bucket, tensor in results:
                started[bucket].take(tensor)
        except Exception:
            for exchange in started.values():
                exchange.abandon()
            self._sparse.abandon()
            raise
        size = self._round.contributors or self.context.comm.size
        for bucket, _ in results:
            gradients = bucket.gradients
            active = self._active_ranks(bucket, size)
            others_active |= active > 0
            if is_active:
                if options.op is Average and active < size:
                    gradients.values.mul_(size / active)
                gradients.hand_out()
            for position in gradients.found_sparse():
                self._sparse.start(bucket, position, is_active=is_active)
        self._move(self._sparse.finish(is_active=is_active))
        return others_active

    def _move(self, found: Mapping[tuple[Bucket, int], bool]) -> None:
        """Lay out buckets again if gradients turned out to be sparse, or dense.

        Args:
            found: For each parameter with a gradient on any rank, whether it is sparse.
        """
        for bucket in {bucket: None for bucket, _ in found}:
            sparse = set(bucket.gradients.sparse)
            for (where, position), is_sparse in found.items():
                if where is bucket:
                    (sparse.add if is_sparse else sparse.discard)(position)
            if sparse != bucket.gradients.sparse:
                self._lay_out(bucket, sorted(sparse))

    def _active_ranks(self, bucket: Bucket, size: int) -> int:
        """Return the number of ranks that have sent gradients of their own.

        Args:
            bucket: The bucket with the result.
            size: Number of ranks that have taken part.
        """
        counts = bucket.gradients.counters.double()
        if self.context.options.op is Average:
            counts = counts * size
        return int(counts.round().sum())


def name_of_gradients(bucket: Bucket) -> str:
    """Return the name of the exchange of a bucket's flat memory."""
    return f"{bucket.name}.gradients"
