"""DiLoCo: many local steps, then one step of an outer optimizer on their mean."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from bluecomm.compression import Codec
from bluecomm.optim.algorithms.outer_step import OuterStep, check_outer
from bluecomm.optim.algorithms.parameter_averaging import name_of_exchange
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.coded_mean import CodedMean
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.nesterov import nesterov_step
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm

_log = logging.getLogger("bluecomm")


@register_algorithm("diloco")
class DiLoCo(OuterStep):
    """DiLoCo: SGD with Nesterov momentum on the mean of the ranks' progress.

    With ``m = 0`` at the start:

        D = mean_i (p_i - x_i),    m <- momentum * m + D,
        p <- p - lr * (D + momentum * m)

    ``lr=1, momentum=0`` is local SGD. All ranks must start equal.

    With ``fragments``, ``overlap`` or ``mixing`` it is Streaming DiLoCo. The formula
    holds for each fragment in its turn; ``D`` is that of ``overlap`` steps before, and
    the rank's own parameters become ``x <- (1 - mixing) p + mixing x``. Fragments
    consist of consecutive parameters and are about equal in size, the *sequential*
    pattern of the paper.

    With a ``codec`` ``Q``, and with ``error_feedback`` ``b``, ``e_i = 0`` at the start:

        e_i <- b * e_i + p_i - x_i,    D = mean_i Q(e_i),    e_i <- e_i - Q(e_i)

    Without ``error_feedback``, ``D = mean_i Q(p_i - x_i)``.

    The outer momentum multiplies the progress of a round by up to the gain
    ``outer_lr / (1 - outer_momentum)``, which is 7 by default. So rounds must be long
    enough for the inner optimizer to settle: ``num_steps_per_communication`` is 30 by
    default, and 500 in the paper, for language models with AdamW. If the gain is above
    2, rounds of fewer than ``2 / (1 - outer_momentum)`` steps log a warning. A training
    of fewer steps than one round communicates nothing.

    Args:
        outer_lr: Rate of the outer step.
        outer_momentum: From 0 to less than 1.
        fragments: Number ``P`` of parts of the model. Each of them has a turn every
            ``num_steps_per_communication`` steps, one after the other, so there is a
            round every ``num_steps_per_communication / P`` steps, and its peak of
            traffic is ``P`` times lower.
        overlap: Number of steps during which the mean travels. It must be lower than
            the number of steps from one round to the next.
        mixing: Share of ``x`` in the parameters after a round, from 0 to less than 1.
        codec: Encodes the progress that is sent, for example ``E3M0()`` of
            ``bluecomm.compression``. Each rank receives the codes of all others.
        error_feedback: Factor of what the codes have lost so far, from 0 to 1; 0.9 in
            MuLoCo's compressed form. ``None``: it is lost.
        uneven_inputs: Let ranks ``join`` when they run out of data; their own progress
            is zero from then on.

    Raises:
        TypeError: ``fragments`` or ``overlap`` is not an integer, or ``codec`` is no
            codec.
        ValueError: An option is out of its range, or ``error_feedback`` has no codec.

    Source:
        Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
        Models", 2023, arXiv:2311.08105. Douillard et al., "Streaming DiLoCo with
        overlapping communication: Towards a Distributed Free Lunch", 2025,
        arXiv:2501.18512. Therien et al., "MuLoCo: Muon is a practical inner optimizer
        for DiLoCo", 2025, arXiv:2505.23725 (error feedback).
    """

    works_on_devices = True
    communication_type = CommunicationType.allreduce
    survives_losses = True
    admits_newcomers = True
    default_steps_per_communication = 30

    def __init__(
        self,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        fragments: int = 1,
        overlap: int = 0,
        mixing: float = 0.0,
        codec: Codec | None = None,
        error_feedback: float | None = None,
        uneven_inputs: bool = False,
    ) -> None:
        check_outer(outer_lr=outer_lr, outer_momentum=outer_momentum)
        _check_codec(codec, error_feedback)
        super().__init__(
            fragments=fragments,
            overlap=overlap,
            mixing=mixing,
            sends_copies=codec is not None,
            uneven_inputs=uneven_inputs,
        )
        self._codec = codec
        self._coded: CodedMean | None = None
        self._decay = error_feedback
        if error_feedback is not None:
            self.keeps = (*self.keeps, "error")
            # The errors of a rank's codes belong to that rank.
            self.hands_over_state = False
        self._lr = outer_lr
        self._momentum = outer_momentum

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        gain = self._lr / (1 - self._momentum)
        steps = self.context.options.num_steps_per_communication
        least = round(2 / (1 - self._momentum))
        if gain > 2 and steps < least and self.context.comm.rank == 0:
            _log.warning(
                "diloco: num_steps_per_communication=%d is too few for "
                "outer_momentum=%g, which multiplies the progress of a round by up "
                "to %.3g, so training may diverge. Use at least %d steps, or "
                "outer_lr=1, outer_momentum=0, which is local_sgd.",
                steps,
                self._momentum,
                gain,
                least,
            )

    def kind_of(self, round_number: int) -> CommunicationType:
        kind = super().kind_of(round_number)
        suitable = (CommunicationType.allreduce, CommunicationType.empty)
        if self._codec is not None and kind not in suitable:
            raise ValueError(
                f"diloco: codec= does not go with communication_type {kind.name}; use "
                "allreduce or empty, or leave codec= out"
            )
        return kind

    def to_progress(self, values: torch.Tensor, bucket: Bucket) -> None:
        values.neg_().add_(self.memory.of("before", bucket))
        if self._decay is not None:
            values.add_(self.memory.of("error", bucket), alpha=self._decay)

    def to_outer(self, values: torch.Tensor, bucket: Bucket) -> None:
        before, momentum = (
            self.memory.of(name, bucket) for name in ("before", "momentum")
        )
        nesterov_step(values, before, momentum, self._lr, self._momentum)

    # -- codes -------------------------------------------------------------------------

    def make_exchange(self) -> Exchange:
        if self._codec is None:
            return super().make_exchange()
        slots = {name_of_exchange(bucket): bucket.slots for bucket in self._buckets}
        comm, settings = self.context.comm, self.context.settings
        self._coded = CodedMean(comm, settings, self._codec, None, slots)
        return self._coded

    def receive(self, bucket: Bucket, result: torch.Tensor) -> None:
        # Not when codes are sent: after a restart, those of a round under way are sent
        # again.
        if self._decay is not None and self.context.comm.size > 1:
            self._keep_error(bucket)
        super().receive(bucket, result)

    def _keep_error(self, bucket: Bucket) -> None:
        """Keep what this rank's codes have lost."""
        assert self._coded is not None
        lost = self.copies[bucket].float()
        self._coded.subtract_own(name_of_exchange(bucket), lost)
        self.memory.of("error", bucket).copy_(lost)


def _check_codec(codec: object, error_feedback: float | None) -> None:
    if codec is not None and not isinstance(codec, Codec):
        raise TypeError(
            "codec must be a codec of bluecomm.compression, such as E3M0(), got "
            f"{codec!r}"
        )
    if error_feedback is None:
        return
    if codec is None:
        raise ValueError("error_feedback needs a codec=, which loses something")
    if not 0 <= error_feedback <= 1:
        raise ValueError(f"error_feedback must be from 0 to 1, got {error_feedback}")
