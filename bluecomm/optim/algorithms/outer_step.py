"""An outer optimizer for the progress of many steps: the base of DiLoCo and others.

``p`` stands for the outer parameters, and ``x`` for this rank's, which the user's
(inner) optimizer changes. docs/optimizer.md describes the states of a round.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from bluecomm.ops.neighbor_weights import Weights
from bluecomm.optim.algorithms.parameter_averaging import name_of_exchange
from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import EXCHANGES, Exchange
from bluecomm.optim.fragments import check_streaming, divide
from bluecomm.optim.options import CommonOptions
from bluecomm.optim.parameter_names import NamedParameters
from bluecomm.optim.registry import name_of
from bluecomm.runtime import Handle
from bluecomm.topology import RandomMatchings


class OuterStep(StatefulAveraging, abc.ABC):
    """Base of methods with local steps, whose rounds end with an outer step.

    A round that *streams* sends copies of one fragment's values, so the parameters
    need not wait for it. Otherwise it sends the memory of all parameters.

    Args:
        fragments: Number of fragments of the model. Each round sends one of them.
        overlap: Number of steps that are taken before a round's result is applied.
        mixing: Share of ``x`` in ``x <- (1 - mixing) p + mixing x``, from 0 to less
            than 1.
        sends_copies: Whether to send copies even if the options above do not need it.
        topology: As for ``ParameterAveraging``.
        uneven_inputs: As for ``ParameterAveraging``.

    Attributes:
        copies: Copies that this rank sends in the round under way; empty if it sends
            the memory of the parameters.

    Raises:
        TypeError: A number is not an integer.
        ValueError: An option is out of its range.
    """

    acts_alone = True
    # A newcomer needs the same p as the others. A momentum of its own may begin with
    # that of any rank.
    hands_over_state = True
    keeps: tuple[str, ...] = ("before", "momentum")
    # The schedule of neighbors without topology=. None: the active topology.
    default_topology: ClassVar[type[RandomMatchings] | None] = None

    def __init__(
        self,
        *,
        fragments: int,
        overlap: int,
        mixing: float,
        sends_copies: bool = False,
        topology: object = None,
        uneven_inputs: bool = False,
    ) -> None:
        check_streaming(fragments, overlap, mixing)
        super().__init__(order="atc", topology=topology, uneven_inputs=uneven_inputs)
        self._count = fragments
        self._overlap = overlap
        self._mixing = mixing
        self._streams = sends_copies or fragments > 1 or overlap > 0 or mixing > 0
        self.halves = 1 if self._streams else 2
        # A fragment in flight would be applied too early.
        self.rebuckets = not self._streams
        self._fragment_of: Mapping[int, int] = {}
        self.copies: dict[Bucket, torch.Tensor] = {}
        # Steps since the round under way was started.
        self._age = 0

    # -- methods that algorithms override ----------------------------------------------

    @abc.abstractmethod
    def to_progress(self, values: torch.Tensor, bucket: Bucket) -> None:
        """Replace ``x``, in ``values``, by what a round sends."""

    @abc.abstractmethod
    def to_outer(self, values: torch.Tensor, bucket: Bucket) -> None:
        """Replace the result of a round, in ``values``, by the next ``p``."""

    def make_exchange(self) -> Exchange:
        if self._topology is None and self.default_topology is not None:
            comm, settings = self.context.comm, self.context.settings
            topology = self.default_topology(comm.size)
            return EXCHANGES[self.communication_type](comm, settings, topology)
        return super().make_exchange()

    # -- fragments ---------------------------------------------------------------------

    def steps_per_round(self, options: CommonOptions) -> int:
        steps, name = options.num_steps_per_communication, name_of(type(self))
        each, rest = divmod(steps, self._count)
        if rest:
            fewer = f"{steps - rest} or " if each else ""
            raise ValueError(
                f"DistributedOptimizer: {name} cannot divide "
                f"num_steps_per_communication={steps} among fragments={self._count}; "
                f"use {fewer}{steps - rest + self._count} steps"
            )
        if self._overlap and self._overlap >= each:
            raise ValueError(
                f"DistributedOptimizer: {name} with overlap={self._overlap} needs "
                f"more than {self._overlap} steps from one round to the next, but "
                f"num_steps_per_communication={steps} with fragments={self._count} "
                f"leaves {each}; use a lower overlap or more steps"
            )
        return each

    def assign_groups(
        self, named: NamedParameters, groups: Mapping[int, int]
    ) -> Mapping[int, int]:
        if self._count == 1:
            return groups
        if groups:
            raise ValueError(
                f"DistributedOptimizer: {name_of(type(self))} takes groups= or "
                "fragments=, because each fragment is a group; leave one of them out"
            )
        self._fragment_of = divide(named, self._count)
        return self._fragment_of

    def buckets_of(self, round_number: int) -> Sequence[Bucket]:
        if self._count == 1:
            return self._buckets
        fragment = round_number % self._count
        return [
            bucket
            for bucket in self._buckets
            if self._fragment_of[id(bucket.slots[0].parameter)] == fragment
        ]

    # -- rounds ------------------------------------------------------------------------

    def begin(self, bucket: Bucket) -> None:
        self.memory.of("before", bucket).copy_(bucket.parameters.current)

    def before_round(self, bucket: Bucket, weights: Weights) -> None:
        self.to_progress(bucket.parameters.current, bucket)

    def after_round(self, bucket: Bucket) -> None:
        self.to_outer(bucket.parameters.current, bucket)

    def send(self, bucket: Bucket, weights: Weights) -> Handle[torch.Tensor]:
        if not self._streams:
            return super().send(bucket, weights)
        sent = bucket.empty()
        self.to_progress(sent.copy_(bucket.parameters.current), bucket)
        self.copies[bucket] = sent
        return self.send_copy(bucket, sent, weights)

    def send_copy(
        self, bucket: Bucket, sent: torch.Tensor, weights: Weights
    ) -> Handle[torch.Tensor]:
        """Start the operation of a bucket; ``sent`` stays as it is meanwhile."""
        result = bucket.empty()
        with self._round.starting():
            return self._exchanges[self._kind].start(
                weights, sent, result, name_of_exchange(bucket)
            )

    def receive(self, bucket: Bucket, result: torch.Tensor) -> None:
        if not self._streams:
            super().receive(bucket, result)
            return
        del self.copies[bucket]
        self._report(bucket.parameters.check())
        self.to_outer(result, bucket)
        self.memory.of("before", bucket).copy_(result)
        current = bucket.parameters.current
        if self._mixing:
            current.mul_(self._mixing).add_(result, alpha=1 - self._mixing)
        else:
            current.copy_(result)

    @property
    def is_ready(self) -> bool:
        return self._age >= self._overlap

    def after_step(self) -> None:
        self._age += 1
        super().after_step()

    def _begin_round(self, number: int) -> None:
        # Several forward passes per step make fewer steps than expected.
        self._finish()
        self.copies.clear()
        self._age = 0
        super()._begin_round(number)

    def drain(self) -> None:
        self._finish()

    def finalize(self) -> None:
        self._finish()
        super().finalize()

    # -- checkpoints -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        sent = {
            slot.name: slot.view_of(values).clone()
            for bucket, values in self.copies.items()
            for slot in bucket.slots
        }
        return {**super().state_dict(), "age": self._age, "sent": sent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # The results of a round under way belong to the state that is replaced.
        self._round.wait()
        self.copies.clear()
        super().load_state_dict(state)
        if state.get("sent"):
            self._resume(state["sent"], state["age"])

    def _resume(self, sent: Mapping[str, torch.Tensor], age: int) -> None:
        """Start the round again that was under way when the state was saved."""
        number = self.context.schedule.round - 1
        buckets = self.buckets_of(number)
        if {slot.name for bucket in buckets for slot in bucket.slots} != sent.keys():
            raise ValueError(
                f"{name_of(type(self))}: the state was saved while a round with other "
                f"fragments was under way, of {', '.join(sorted(sent))}; load it into "
                "an optimizer with the same model and fragments="
            )
        self._begin_round(number)
        self._has_started = False
        self._age = age
        for bucket in reversed(buckets) if self._weights is not None else ():
            values = bucket.empty().zero_()
            for slot in bucket.slots:
                slot.view_of(values).copy_(sent[slot.name])
            assert self._weights is not None
            self.copies[bucket] = values
            self._round.add(bucket, self.send_copy(bucket, values, self._weights))


def check_outer(*, outer_momentum: float, **positive: float) -> None:
    """Raise unless the options of an outer step are in their ranges.

    Raises:
        ValueError: The momentum is not, or another value is not above 0.
    """
    if not 0 <= outer_momentum < 1:
        raise ValueError(
            f"outer_momentum must be at least 0 and less than 1, got {outer_momentum}"
        )
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
