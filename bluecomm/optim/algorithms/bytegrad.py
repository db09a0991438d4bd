"""Averaging of gradients that are sent as one byte per value, as in Bagua."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bluecomm.compression import MinMaxUInt8
from bluecomm.ops.reduce_op import Adasum
from bluecomm.ops.refusal import Operation
from bluecomm.optim.algorithm import wait_for
from bluecomm.optim.algorithms.gradient_averaging import GradientAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.coded_gradients import CodedGradients, sparse_error
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Handle


@register_algorithm("bytegrad")
class ByteGrad(GradientAveraging):
    """Centralized training in 8 bits: ``x_i <- step(x_i, Q(mean_j Q(g_j(x_j))))``.

    ``Q`` rounds as ``MinMaxUInt8`` does, in chunks of 65536 values or less. All ranks
    decode the same bytes, so ranks that start equal stay equal. Ranks and parameters
    without a gradient count as in ``gradient_allreduce``; ``op=Sum`` gives the sum. An
    infinity or a NaN on one rank makes its chunk NaN on all ranks.

    Rounding errors are not carried over to later steps, so the method has no state.

    Source:
        Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations",
        VLDB 2021, arXiv:2107.01499.
    """

    # As in gradient_allreduce; a code is a quarter of a gradient.
    default_bucket_nbytes = 16 << 20
    honours = frozenset(
        {
            "backward_passes_per_step",
            "num_steps_per_communication",
            "op",
            "sparse_as_dense",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self._coded: dict[Bucket, CodedGradients] = {}
        self._first_halves: dict[Bucket, Handle[Any]] = {}

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        self._check(buckets)
        if self.follows_backward():
            codec = MinMaxUInt8()
            self._coded = {
                bucket: CodedGradients(self.context, bucket, codec)
                for bucket in buckets
            }

    def follows_backward(self) -> bool:
        # In a world of one the rank's own gradients are the mean.
        return self.context.comm.size > 1

    def joins_in_engine(self) -> bool:
        return not self.follows_backward()

    def refused_join(self) -> Iterator[Operation]:
        for coded in self._coded.values():
            yield from coded.refused()

    def _check(self, buckets: Sequence[Bucket]) -> None:
        """Raise if the options or the layers do not suit.

        Raises:
            ValueError: The reduction is Adasum, or a layer has sparse gradients.
        """
        if self.context.options.op is Adasum:
            raise ValueError(
                "DistributedOptimizer: bytegrad computes the average or the sum of "
                "gradients; use op=bluecomm.Adasum with gradient_allreduce"
            )
        for bucket in buckets:
            for slot in bucket.slots:
                if id(slot.parameter) in self.context.sparse_parameters:
                    raise sparse_error(slot.name)

    def start(self, bucket: Bucket, *, is_active: bool) -> None:
        coded = self._coded[bucket]
        self._first_halves[bucket] = coded.start_pieces(is_active=is_active)

    def finish(self, *, is_active: bool) -> bool:
        # The second halves start in the order of the buckets, which is the same on all
        # ranks. If an exchange fails, the others end first.
        first_halves, self._first_halves = self._first_halves, {}
        second_halves: list[tuple[Bucket, Handle[torch.Tensor]]] = []
        failures: list[Exception] = []
        others_active = False
        for bucket in (one for one in self.buckets if one in first_halves):
            try:
                active, handle = self._coded[bucket].start_results(first_halves[bucket])
            except Exception as error:
                failures.append(error)
                continue
            others_active |= active > 0
            if handle is not None:
                second_halves.append((bucket, handle))
        for bucket, handle in second_halves:
            try:
                wait_for(handle)
            except Exception as error:
                failures.append(error)
                continue
            if is_active:
                self._coded[bucket].finish()
        if failures:
            raise failures[0]
        return others_active
