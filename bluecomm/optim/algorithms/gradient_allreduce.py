"""Averaging of gradients over all ranks, as in Horovod and DDP."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bluecomm.ops.allreduce import allreduce_parts_nonblocking_
from bluecomm.ops.reduce_op import Average
from bluecomm.optim.algorithm import Algorithm, Round
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.last_to_join import last_to_join
from bluecomm.optim.registry import register_algorithm

# Active ranks are counted in groups of this size. A bfloat16 (8 bits) still gives the
# exact count: a mean over the ranks is rounded by at most 1/512 of the count.
_COUNTED_TOGETHER = 128


@register_algorithm("gradient_allreduce")
class GradientAllreduce(Algorithm):
    """Centralized training: ``x_i <- step(x_i, mean over ranks j of g_j(x_j))``.

    Ranks that start equal stay equal. The mean is over the ranks that have not joined.
    A rank without a gradient for a parameter counts as zero; a parameter without a
    gradient on any rank is not stepped. ``op=Sum`` gives the sum instead, and
    ``op=Adasum`` an adaptive sum of each parameter's gradients (see ``ReduceOp``).

    Source:
        Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in
        TensorFlow", arXiv:1802.05799. Li et al., "PyTorch Distributed", VLDB 2020.
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys
        2021, arXiv:2006.02924.
    """

    flat_gradients = True
    # The last bucket is sent when no computation is left to overlap with, so buckets
    # are smaller than in the other algorithms.
    default_bucket_nbytes = 4 << 20
    honours = frozenset(
        {
            "backward_passes_per_step",
            "compression",
            "num_steps_per_communication",
            "op",
        }
    )

    def __init__(self) -> None:
        self._buckets: Sequence[Bucket] = ()
        self._round = Round()
        self._kept_types: dict[Bucket, torch.dtype | None] = {}

    def setup(self, buckets: Sequence[Bucket]) -> None:
        if not self.follows_backward():
            return
        groups = -(-self.context.comm.size // _COUNTED_TOGETHER)
        for bucket in buckets:
            bucket.lay_out_gradients(counters=groups)
        self._buckets = buckets

    def follows_backward(self) -> bool:
        # In a world of one the rank's own gradients are the mean.
        return self.context.comm.size > 1

    def on_gradients_ready(self, bucket: Bucket) -> None:
        gradients = bucket.gradients
        gradients.fill()
        gradients.counters.zero_()
        gradients.counters[self.context.comm.rank // _COUNTED_TOGETHER] = 1
        self._start(bucket)

    def after_backward(self) -> None:
        for bucket in self._finish():
            active, size = self._active_ranks(bucket), self.context.comm.size
            if self.context.options.op is Average and active < size:
                bucket.gradients.values.mul_(size / active)
            bucket.gradients.hand_out()

    def join(self) -> int:
        """Send zeros until all ranks have joined; return the last one to join."""
        comm = self.context.comm
        if comm.size == 1:
            return comm.ranks[0]
        for bucket in self._buckets:
            for slot in bucket.slots:
                slot.parameter.grad = None
        waited, others_active = -1, True
        while others_active:
            for bucket in self._buckets:
                bucket.gradients.clear()
                self._start(bucket)
            finished = self._finish()
            others_active = any(self._active_ranks(bucket) for bucket in finished)
            waited += 1
        return last_to_join(comm, waited, self.context.name)

    def _start(self, bucket: Bucket) -> None:
        compression = self.context.options.compression
        tensor, self._kept_types[bucket] = compression.compress(bucket.gradients.flat)
        handle = allreduce_parts_nonblocking_(
            tensor,
            bucket.gradients.lengths,
            op=self.context.options.op,
            name=f"{bucket.name}.gradients",
            process_set=self.context.comm,
        )
        self._round.add(bucket, handle)

    def _finish(self) -> list[Bucket]:
        """Wait for all exchanges under way and return their buckets."""
        results = self._round.wait()
        for bucket, tensor in results:
            flat = bucket.gradients.flat
            if tensor is not flat:
                compression = self.context.options.compression
                flat.copy_(compression.decompress(tensor, self._kept_types[bucket]))
        return [bucket for bucket, _ in results]

    def _active_ranks(self, bucket: Bucket) -> int:
        """Return the number of ranks that have sent gradients of their own."""
        counts = bucket.gradients.counters.double()
        if self.context.options.op is Average:
            counts = counts * self.context.comm.size
        return int(counts.round().sum())
