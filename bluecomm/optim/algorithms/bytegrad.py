"""Averaging of gradients that are sent as one byte per value, as in Bagua."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bluecomm.compression import MinMaxUInt8
from bluecomm.ops.reduce_op import Adasum
from bluecomm.ops.refusal import Operation
from bluecomm.optim.algorithms.gradient_averaging import GradientAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.coded_gradients import CodedGradients
from bluecomm.optim.dense_only import sparse_error
from bluecomm.optim.failures import Failures
from bluecomm.optim.finite import refuse_not_finite
from bluecomm.optim.machine_gradients import coded_gradients
from bluecomm.optim.machines import Machines
from bluecomm.optim.registry import register_algorithm


@register_algorithm("bytegrad")
class ByteGrad(GradientAveraging):
    """Centralized training in 8 bits: ``x_i <- step(x_i, Q(mean_j Q(g_j(x_j))))``.

    ``Q`` rounds as ``MinMaxUInt8`` does, in chunks of 65536 values or less. All ranks
    decode the same bytes, so ranks that start equal stay equal. Ranks and parameters
    without a gradient count as in ``gradient_allreduce``; ``op=Sum`` gives the sum. An
    infinity or a NaN on one rank makes its chunk NaN on all ranks. A step with such
    gradients raises ``FloatingPointError`` on all ranks, before anything changes; a
    ``GradScaler`` skips it.

    Rounding errors are not carried over to later steps, so the method has no state.

    Gradients on a device are encoded there during the backward pass, and the exchange
    of a bucket starts then. Where the codec's kernels cannot run, the gradients are
    copied to the host, and encoded there at the end of the backward pass.

    Args:
        hierarchical: Whether the ranks of a machine first add their gradients in full
            precision, so that only one rank of each machine encodes and sends to other
            machines.

    Source:
        Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations",
        VLDB 2021, arXiv:2107.01499.
    """

    works_on_devices = True
    works_in_backward = True
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

    def __init__(self, hierarchical: bool = False) -> None:
        super().__init__()
        self._is_hierarchical = hierarchical
        self._coded: dict[Bucket, CodedGradients] = {}

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        self._check(buckets)
        if self.follows_backward():
            self._coded = self._exchanges_of(buckets)

    def _exchanges_of(self, buckets: Sequence[Bucket]) -> dict[Bucket, CodedGradients]:
        context, codec = self.context, MinMaxUInt8()
        machines = Machines.of(context) if self._is_hierarchical else None
        return {
            one: coded_gradients(context, one, codec, machines=machines)
            for one in buckets
        }

    def before_update(self) -> None:
        super().before_update()
        refuse_not_finite(
            (text for coded in self._coded.values() for text in coded.not_finite()),
            "so bytegrad has made them NaN on all ranks",
        )

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
                    raise sparse_error("bytegrad", slot.name)

    def start(self, bucket: Bucket, *, is_active: bool) -> None:
        self._coded[bucket].start(is_active=is_active)

    def finish(self, *, is_active: bool) -> bool:
        # If an exchange fails, the others end first.
        failures = Failures()
        others_active = False
        for coded in self._coded.values():
            with failures.kept():
                coded.begin()
        for coded in self._coded.values():
            if not coded.is_under_way:
                continue
            with failures.kept():
                others_active |= coded.finish(is_active=is_active) > 0
        failures.raise_first()
        return others_active
