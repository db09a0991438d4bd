"""SparseLoCo: the largest values of many local steps, in two bits each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bluecomm.compression import ErrorFeedback, QuantizedTopK
from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithms.outer_step import OuterStep
from bluecomm.optim.algorithms.parameter_averaging import name_of_exchange
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.buckets.bucket_state import by_parameter, fill_by_parameter
from bluecomm.optim.exchanges.coded_mean import CodedMean
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Handle


@register_algorithm("sparse_loco")
class SparseLoCo(OuterStep):
    """SparseLoCo: an outer step on sparse codes of the ranks' progress.

    ``p`` are the parameters after the last round, ``x_i`` those of rank ``i`` after
    ``num_steps_per_communication`` more steps of the user's optimizer (30 by default).
    With ``e_i = 0`` at the start, a round is:

        e_i <- error_decay * e_i + (p - x_i)
        s_i  = Q(e_i),    e_i <- e_i - s_i
        p   <- p - outer_lr * mean_i s_i

    ``Q`` is ``QuantizedTopK``: of each 4096 values of a bucket it keeps the ``k``
    largest, in two bits each. The residuals ``e_i`` play the part of an outer momentum.
    All ranks must start equal, and get the same bits in each round. In a world of one,
    ``Q(e) = e``.

    With ``overlap`` steps, the codes travel while training goes on: the round that ends
    with the step ``t`` is applied after the step ``t + overlap``. A rank keeps the
    ``u_i`` that it has added to its parameters meanwhile, ``x_i <- p + u_i``, and sends
    it with the next round. So a larger ``k`` costs no time on a slow network.

    If parameters of a rank are not finite, the round fails on all ranks: they return to
    ``p``, and its progress is lost.

    Args:
        k: Number of values to send of each 4096, from 1 to 4096.
        outer_lr: Rate of the outer step, above 0.
        error_decay: Factor of the residuals, from 0 to 1.
        overlap: Number of steps during which the codes travel. It must be lower than
            the number of steps from one round to the next.
        uneven_inputs: Let ranks ``join`` when they run out of data. They go on to send
            their residuals.

    Raises:
        TypeError: ``overlap`` is not an integer.
        ValueError: An option is out of its range.

    Source:
        Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025,
        arXiv:2508.15706.
    """

    works_on_devices = True
    communication_type = CommunicationType.allreduce
    # Each rank has residuals of its own.
    hands_over_state = False
    default_steps_per_communication = 30
    keeps = ("before",)

    _coded: CodedMean

    def __init__(
        self,
        *,
        k: int = 64,
        outer_lr: float = 1.0,
        error_decay: float = 0.95,
        overlap: int = 0,
        uneven_inputs: bool = False,
    ) -> None:
        if not outer_lr > 0:
            raise ValueError(f"outer_lr must be above 0, got {outer_lr}")
        super().__init__(
            fragments=1, overlap=overlap, mixing=0.0, uneven_inputs=uneven_inputs
        )
        # Codes are added to the parameters in place.
        self.halves = 1
        self._codec = QuantizedTopK(k)
        self._feedback = ErrorFeedback(error_decay)
        # The residuals before the round under way, if it overlaps.
        self._earlier: dict[str, torch.Tensor] = {}
        self._lr = outer_lr

    def rebucket(self, buckets: Sequence[Bucket]) -> None:
        residuals = self._residuals()
        super().rebucket(buckets)
        self._exchanges[self.communication_type] = self.make_exchange()
        self._load_residuals(residuals)

    def make_exchange(self) -> Exchange:
        slots = {name_of_exchange(bucket): bucket.slots for bucket in self._buckets}
        comm, settings = self.context.comm, self.context.settings
        self._coded = CodedMean(comm, settings, self._codec, self._feedback, slots)
        return self._coded

    def send(self, bucket: Bucket, weights: Weights) -> Handle[torch.Tensor]:
        if self._streams:
            return super().send(bucket, weights)
        self.before_round(bucket, weights)
        values, name = bucket.parameters, name_of_exchange(bucket)
        values.lend()
        with self._round.starting():
            if self.context.comm.size == 1:
                return self._coded.start(weights, values.current, values.current, name)
            return self._coded.start_codes(values.current, name)

    def send_copy(
        self, bucket: Bucket, sent: torch.Tensor, weights: Weights
    ) -> Handle[torch.Tensor]:
        if self.context.comm.size == 1:
            return super().send_copy(bucket, sent, weights)
        with self._round.starting():
            return self._coded.start_codes(sent, name_of_exchange(bucket))

    def receive(self, bucket: Bucket, result: torch.Tensor) -> None:
        if self._streams:
            self._receive_late(bucket, result)
            return
        values = bucket.parameters
        values.take_back()
        if self.context.comm.size == 1:
            self.to_outer(result, bucket)
        else:
            values.current.copy_(self.memory.of("before", bucket))
            name = name_of_exchange(bucket)
            self._coded.add_mean(name, result, values.current, -self._lr)
        # Values that the user has assigned in the meantime take precedence.
        self._report(values.check())
        self._is_first_step = True

    def _receive_late(self, bucket: Bucket, result: torch.Tensor) -> None:
        """Take the outer step, and keep what this rank has added to ``x`` meanwhile."""
        self._report(bucket.parameters.check())
        outer, current = self.memory.of("before", bucket), bucket.parameters.current
        current.sub_(outer).add_(self.copies.pop(bucket))
        if self.context.comm.size == 1:
            outer.add_(result, alpha=-self._lr)
        else:
            self._coded.add_mean(name_of_exchange(bucket), result, outer, -self._lr)
        current.add_(outer)

    def _begin_round(self, number: int) -> None:
        super()._begin_round(number)
        if self._streams:
            # A restart of the round encodes its progress again.
            self._earlier = self._feedback.state_dict()

    def to_progress(self, values: torch.Tensor, bucket: Bucket) -> None:
        torch.sub(self.memory.of("before", bucket), values, out=values)

    def to_outer(self, values: torch.Tensor, bucket: Bucket) -> None:
        values.mul_(-self._lr).add_(self.memory.of("before", bucket))

    def _finish(self) -> None:
        try:
            super()._finish()
        except FloatingPointError:
            self.copies.clear()
            for bucket in self._buckets:
                bucket.parameters.current.copy_(self.memory.of("before", bucket))
            raise

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "residuals": self._residuals()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # A round under way is sent again with the residuals before it.
        self._load_residuals(state.get("residuals", {}))
        super().load_state_dict(state)

    def _residuals(self) -> dict[str, torch.Tensor]:
        """Return copies of this rank's residuals by the names of the parameters.

        While a round is under way they are those before it, which is sent again.
        """
        flats = self._earlier if self.copies else self._feedback.state_dict()
        return by_parameter(
            {
                bucket: flats[name]
                for bucket in self._buckets
                if (name := name_of_exchange(bucket)) in flats
            }
        )

    def _load_residuals(self, residuals: Mapping[str, torch.Tensor]) -> None:
        flats = {
            bucket: torch.zeros(bucket.numel, dtype=torch.float32)
            for bucket in (self._buckets if residuals else ())
        }
        fill_by_parameter("residuals", flats, residuals)
        self._feedback.load_state_dict(
            {name_of_exchange(bucket): flat for bucket, flat in flats.items()}
        )
