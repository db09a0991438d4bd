"""Averaging of gradients as products of two thin matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bluecomm.optim.algorithm import no_join, wait_for
from bluecomm.optim.algorithms.gradient_allreduce import GradientAllreduce
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.dense_only import sparse_error
from bluecomm.optim.failures import Failures
from bluecomm.optim.finite import refuse_not_finite
from bluecomm.optim.low_rank_gradients import LowRank, LowRankGradients
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Handle
from bluecomm.topology.graph import check_integer

# Makes seeds of different rounds and parameters differ.
_PRIME = 1_000_003


@register_algorithm("powersgd")
class PowerSGD(GradientAllreduce):
    """Centralized training with gradients of low rank.

    A gradient of two or more dimensions is a matrix ``G_i`` with a row for each entry
    of the first one. With its error ``E_i``, 0 at first, and ``Q`` the right factor of
    the last round, random at first, a round is one step of a power iteration::

        M_i = G_i + E_i,    P = orthogonalize(mean_i M_i Q),    Q = mean_i M_i^T P
        G   = P Q^T,        E_i <- M_i - G

    All ranks step with ``G``. Vectors, and matrices that factors do not make small
    enough, are averaged exactly. The first ``start_step`` rounds are those of
    ``gradient_allreduce``.

    With a ``GradScaler`` errors are those of scaled gradients, so in the round after
    the scale has changed they count with the earlier scale. A round with a result that
    is not finite leaves ``E_i`` and ``Q`` as they are, and a step with it that no
    ``GradScaler`` skips raises ``FloatingPointError`` on all ranks, before anything
    changes. The exact rounds are not searched, as with ``gradient_allreduce``.

    Args:
        rank: Number of columns of ``P`` and ``Q``.
        start_step: Number of rounds before the first one with factors.
        min_compression_rate: A matrix is sent as factors if it has more than this many
            times the number of their values.
        error_feedback: Whether there is an ``E_i``.
        warm_start: Whether a round begins with the ``Q`` of the last one, and not with
            a random one.
        seed: Seed of the random numbers, the same on all ranks.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option is out of its range.

    Source:
        Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient
        Compression for Distributed Optimization", NeurIPS 2019, arXiv:1905.13727. The
        defaults and ``min_compression_rate`` are those of torch's ``PowerSGDState``.
    """

    works_on_devices = True
    works_in_backward = True
    survives_losses = False
    admits_newcomers = False
    default_bucket_nbytes = 16 << 20
    honours = frozenset(
        {"backward_passes_per_step", "num_steps_per_communication", "sparse_as_dense"}
    )

    def __init__(
        self,
        *,
        rank: int = 1,
        start_step: int = 1000,
        min_compression_rate: float = 2.0,
        error_feedback: bool = True,
        warm_start: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("rank", rank, 1),
            ("start_step", start_step, 0),
            ("seed", seed, 0),
        ):
            check_integer(value, name, minimum=least)
        for name, flag in (
            ("error_feedback", error_feedback),
            ("warm_start", warm_start),
        ):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, got {flag!r}")
        if not 0 < min_compression_rate < math.inf:
            raise ValueError(
                "min_compression_rate must be above 0 and finite, got "
                f"{min_compression_rate}"
            )
        self._rank, self._start_step, self._seed = rank, start_step, seed
        self._rate = min_compression_rate
        self._keeps_error, self._is_warm = error_feedback, warm_start
        self._rounds = 0
        # State of the parameters with factors, by ``id``, in the order of the first
        # buckets. Random numbers follow this order, so other buckets change none.
        self._states: dict[int, LowRank] = {}
        self._exchanges: dict[Bucket, LowRankGradients] = {}
        self._lefts: dict[Bucket, Handle[torch.Tensor]] = {}

    def setup(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            for slot in bucket.slots:
                if id(slot.parameter) in self.context.sparse_parameters:
                    raise sparse_error("powersgd", slot.name)
        super().setup(buckets)
        self._exchanges = {}
        for bucket in buckets if self.follows_backward() else ():
            states = {}
            for position, slot in enumerate(bucket.slots):
                key = id(slot.parameter)
                state = self._states.get(key) or LowRank.of(
                    slot.parameter,
                    self._rank,
                    self._rate,
                    keeps_error=self._keeps_error,
                )
                if state is not None:
                    self._states[key] = states[position] = state
            self._exchanges[bucket] = LowRankGradients(self.context, bucket, states)

    def start(self, bucket: Bucket, *, is_active: bool) -> None:
        if self._rounds < self._start_step:
            super().start(bucket, is_active=is_active)
            return
        if not self._lefts:
            self._draw()
        self._lefts[bucket] = self._exchanges[bucket].start_left()

    def finish(self, *, is_active: bool) -> bool:
        is_exact = self._rounds < self._start_step
        self._rounds += 1
        if is_exact:
            return super().finish(is_active=is_active)
        # The second exchanges start in the order of the buckets, which is the same on
        # all ranks. If one fails, the others end first.
        lefts, self._lefts = self._lefts, {}
        rights: list[tuple[Bucket, Handle[torch.Tensor]]] = []
        failures = Failures()
        for bucket in (one for one in self.buckets if one in lefts):
            with failures.kept():
                handle = self._exchanges[bucket].start_right(lefts[bucket])
                rights.append((bucket, handle))
        for bucket, handle in rights:
            with failures.kept():
                self._exchanges[bucket].finish(wait_for(handle))
        failures.raise_first()
        return True

    def before_update(self) -> None:
        super().before_update()
        refuse_not_finite(
            (text for one in self._exchanges.values() for text in one.not_finite()),
            "so powersgd has spread them to all ranks",
        )

    def _draw(self) -> None:
        """Draw the right factors that a round begins with, unless they are kept."""
        if self._is_warm and self._rounds > self._start_step:
            return
        for number, state in enumerate(self._states.values(), start=1):
            state.draw((self._seed * _PRIME + self._rounds) * _PRIME + number)

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        # Errors, and the sums of them and the gradients.
        return super().memory_in_models(ranks, neighbors) + 2

    def joins_in_engine(self) -> bool:
        return not self.follows_backward()

    def obstacle_to_join(self) -> str:
        return no_join("the error of a rank without data would count as its gradient")

    def state_dict(self) -> dict[str, Any]:
        named = [
            (slot.name, self._states[id(slot.parameter)])
            for bucket in self.buckets
            for slot in bucket.slots
            if id(slot.parameter) in self._states
        ]
        return {
            "rounds": self._rounds,
            "right": {name: state.right.clone() for name, state in named},
            "error": {
                name: state.error.clone()
                for name, state in named
                if state.error is not None
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kept = self.state_dict()
        self._rounds = state.get("rounds", 0)
        if not state.get("right"):
            self._rounds = min(self._rounds, self._start_step)  # draws new ones
        for what in ("right", "error"):
            given = state.get(what, {})
            if given and {n: t.shape for n, t in given.items()} != {
                n: t.shape for n, t in kept[what].items()
            }:
                raise ValueError(
                    f"powersgd: the state has tensors {what!r} for other parameters, "
                    "shapes or options than this optimizer; make it with the same "
                    "ones, or drop the key 'bluecomm' of the optimizer's state"
                )
        for bucket in self.buckets:
            for slot in bucket.slots:
                mine = self._states.get(id(slot.parameter))
                if mine is None:
                    continue
                for tensor, what in ((mine.right, "right"), (mine.error, "error")):
                    if tensor is not None:
                        given = state.get(what, {}).get(slot.name)
                        if given is None:
                            tensor.zero_()
                        else:
                            tensor.copy_(given)
