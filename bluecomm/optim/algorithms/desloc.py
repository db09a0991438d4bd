"""DES-LOC: local steps of Adam; moments are averaged less often than parameters.

``x`` stands for the parameters, ``m`` and ``v`` for the moments of Adam.
"""

from __future__ import annotations

from typing import Any

import torch

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithms.parameter_averaging import (
    ParameterAveraging,
    name_of_exchange,
)
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.fused.probe import state_of_a_step
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Communicator, Handle
from bluecomm.topology.graph import check_integer

# Keys of the state of torch's Adam. The last one exists with amsgrad=True.
_FIRST = ("exp_avg",)
_SECOND = ("exp_avg_sq", "max_exp_avg_sq")


@register_algorithm("desloc")
class DesLoc(ParameterAveraging):
    """Exact means of the parameters and, less often, of the moments of Adam.

    With ``K = num_steps_per_communication``, 32 by default, each rank steps alone, and
    after every step ``t``::

        x_i <- mean_j x_j    if t is a multiple of K
        m_i <- mean_j m_j    if t is a multiple of momentum_every K
        v_i <- mean_j v_j    if t is a multiple of second_every K

    A moment changes more slowly than the parameters, the second one more slowly than
    the first, so their means may be rarer where the ranks' data is alike; the paper
    uses 3 and 6. They are sent in the parameters' type. The default, a mean of all in
    each round, is Local Adam: with heterogeneous data, ``m`` must not be averaged
    before ``v``.

    It needs an optimizer with the state of ``torch.optim.Adam`` (``exp_avg`` and
    ``exp_avg_sq``), such as ``AdamW``, ``NAdam`` and ``RAdam``. A rank without state
    for a parameter counts as zeros, and keeps none.

    Args:
        momentum_every: Rounds from one mean of ``m`` to the next.
        second_every: Rounds from one mean of ``v`` to the next.

    Raises:
        TypeError: An option is not an integer.
        ValueError: An option is less than 1.

    Source:
        Iacob et al., "DES-LOC: Desynced Low Communication Adaptive Optimizers for
        Training Foundation Models", 2025, arXiv:2505.22549.
    """

    works_on_devices = True
    communication_type = CommunicationType.allreduce
    default_steps_per_communication = 32
    # A rank without gradients would send moments that only grow older.
    may_join = False

    def __init__(self, *, momentum_every: int = 1, second_every: int = 1) -> None:
        for name, value in (
            ("momentum_every", momentum_every),
            ("second_every", second_every),
        ):
            check_integer(value, name, minimum=1)
        super().__init__(order="atc")
        self._periods = ((momentum_every, _FIRST), (second_every, _SECOND))
        self._optimizer: torch.optim.Optimizer
        # The keys of _FIRST and _SECOND that the optimizer's state has.
        self._has: frozenset[str] = frozenset()
        # The keys that each bucket under way sends.
        self._sent: dict[Bucket, list[str]] = {}

    @classmethod
    def needed_optimizer(
        cls, parameters: Any, lr: float, warmup_steps: int
    ) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr)

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        """Refuse optimizers without the moments of Adam.

        Raises:
            TypeError: The optimizer has none.
        """
        found = frozenset(state_of_a_step(optimizer))
        if missing := sorted({*_FIRST, _SECOND[0]} - found):
            raise TypeError(
                "DistributedOptimizer: desloc averages the moments of Adam, and the "
                f"state of {type(optimizer).__name__} has no {' and no '.join(missing)}"
                "; use torch.optim.AdamW, or local_sgd, which averages parameters only"
            )
        self._optimizer = optimizer
        self._has = found & {*_FIRST, *_SECOND}

    def send(self, bucket: Bucket, weights: Weights) -> Handle[torch.Tensor]:
        keys = self._keys_of(self.context.schedule.round)
        # Also if there are none: those of a round that failed must not remain.
        self._sent[bucket] = keys
        if not keys:
            return super().send(bucket, weights)
        values = bucket.parameters
        values.lend()
        # One operation for all, so that a round is one operation for each bucket.
        sent, result = (bucket.empty(1 + len(keys)).zero_() for _ in range(2))
        own, *parts = sent.view(1 + len(keys), bucket.numel).unbind()
        own.copy_(values.current)
        for key, part in zip(keys, parts, strict=True):
            for slot in bucket.slots:
                moment = self._optimizer.state.get(slot.parameter, {}).get(key)
                if moment is not None:
                    slot.view_of(part).copy_(moment)
        with self._round.starting():
            return self._exchanges[self._kind].start(
                weights, sent, result, name_of_exchange(bucket)
            )

    def receive(self, bucket: Bucket, result: torch.Tensor) -> None:
        keys = self._sent.pop(bucket, [])
        if keys:
            own, *parts = result.view(1 + len(keys), bucket.numel).unbind()
            bucket.parameters.next.copy_(own)
            for key, part in zip(keys, parts, strict=True):
                for slot in bucket.slots:
                    moment = self._optimizer.state.get(slot.parameter, {}).get(key)
                    if moment is not None:
                        moment.copy_(slot.view_of(part))
        super().receive(bucket, result)

    def _keys_of(self, number: int) -> list[str]:
        """Return the keys of the moments that a round averages."""
        return [
            key
            for period, keys in self._periods
            for key in keys
            if key in self._has and (number + 1) % period == 0
        ]
