"""Base of the algorithms that average gradients over all ranks in each step."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.last_to_join import last_to_join
from bluecomm.optim.sparse_gradients import make_dense


class GradientAveraging(Algorithm, abc.ABC):
    """Exchanges each bucket when its gradients are ready, and ends with backward.

    Ranks that have joined take part with zeros, until all ranks have joined.
    """

    flat_gradients = True
    rebuckets = True

    def __init__(self) -> None:
        self.buckets: Sequence[Bucket] = ()

    def setup(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets

    def on_gradients_ready(self, bucket: Bucket) -> None:
        bucket.gradients.fill()
        self.start(bucket, is_active=True)

    def after_backward(self) -> None:
        self.finish(is_active=True)

    def before_update(self) -> None:
        if self.context.options.sparse_as_dense and not self.follows_backward():
            for bucket in self.buckets:
                make_dense(slot.parameter for slot in bucket.slots)

    def obstacle_to_join(self) -> str:
        return ""

    def continue_until_all_join(self) -> int:
        """Send zeros until all ranks have joined; return the last one to join."""
        comm = self.context.comm
        if comm.size == 1:
            return comm.ranks[0]
        for bucket in self.buckets:
            for slot in bucket.slots:
                slot.parameter.grad = None
        waited, others_active = -1, True
        while others_active:
            for bucket in self.buckets:
                bucket.gradients.clear()
                self.start(bucket, is_active=False)
            others_active = self.finish(is_active=False)
            waited += 1
        return last_to_join(comm, waited, self.context.name)

    @abc.abstractmethod
    def start(self, bucket: Bucket, *, is_active: bool) -> None:
        """Start the exchange of a bucket's flat gradients.

        Args:
            bucket: The bucket.
            is_active: Whether this rank has data.
        """

    @abc.abstractmethod
    def finish(self, *, is_active: bool) -> bool:
        """Finish all exchanges under way; return whether any rank is active.

        Args:
            is_active: Whether this rank has data, and takes the results.
        """
