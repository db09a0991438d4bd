"""Parameter averaging: decides when the ranks mix; an exchange decides how.

With ``W`` the mixing matrix, ``x`` the stacked parameters and ``step(x, g)`` the user's
optimizer:

* CTA (combine, then adapt): ``x <- step(W x, g(x))``. The exchange runs during forward
  and backward.
* ATC (adapt, then combine): ``x <- W step(x, g(x))``. The exchange runs from the end of
  the step to the next forward.

Source:
    Sayed, "Adaptation, Learning, and Optimization over Networks", Foundations and
    Trends in Machine Learning 7 (2014), chapter 7. Lian et al., "Can Decentralized
    Algorithms Outperform Centralized Algorithms?", NeurIPS 2017 (CTA as D-PSGD).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch

from bfrun.wording import format_ranks
from bluecomm.ops.allreduce import allreduce_nonblocking
from bluecomm.ops.nccl_call import concerned_by
from bluecomm.ops.neighbor_weights import Weights
from bluecomm.ops.reduce_op import Sum
from bluecomm.ops.refusal import Operation, is_marked, refuse
from bluecomm.optim.algorithm import Algorithm, Round
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.exchange import EXCHANGES, Exchange
from bluecomm.optim.last_to_join import last_to_join
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.regrouping import Regrouping
from bluecomm.runtime import Handle

_log = logging.getLogger("bluecomm")

ORDERS = ("atc", "cta")


class ParameterAveraging(Algorithm):
    """Base of the algorithms that average parameters.

    Args:
        order: ``"cta"`` or ``"atc"``.
        topology: Weights that change from round to round: ``"one_peer"``, a schedule
            such as ``bf.topology.OnePeerExponential(n)``, an iterator of
            ``([send ranks], [receive ranks])``, or a function of the round.
        uneven_inputs: Let ranks ``join`` when they run out of data. This costs a tiny
            allreduce per round, so all ranks wait for the slowest.

    Raises:
        ValueError: ``order`` is something else.
    """

    communication_type: CommunicationType
    # Whether a round has an effect in a world of one, too.
    acts_alone: ClassVar[bool] = False
    # Whether a rank without gradients may take part in rounds.
    may_join: ClassVar[bool] = True
    # Halves of flat memory: 2 if rounds send the parameters' own memory.
    halves = 2
    flat_parameters = True
    rebuckets = True
    honours = frozenset({"backward_passes_per_step", "num_steps_per_communication"})

    def __init__(
        self,
        *,
        order: str = "cta",
        topology: object = None,
        uneven_inputs: bool = False,
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self._order = order
        self._topology = topology
        self._uneven_inputs = uneven_inputs
        self._buckets: Sequence[Bucket] = ()
        self._exchanges: dict[CommunicationType, Exchange] = {}
        self._weights: Weights | None = None
        self._round = Round()
        self._more = Round()
        self._has_started = False
        self._is_active = True
        self._counting: Handle[torch.Tensor] | None = None
        self._active_ranks = 0
        self._kind = CommunicationType.empty
        self._is_first_step = True
        self._survives = False
        self._regrouping: Regrouping | None = None

    def setup(self, buckets: Sequence[Bucket]) -> None:
        comm, settings = self.context.comm, self.context.settings
        settings.communication_type = self.communication_type
        self._lay_out(buckets)
        for kind, exchange in EXCHANGES.items():
            self._exchanges[kind] = exchange(comm, settings, None)
        self._exchanges[self.communication_type] = self.make_exchange()
        self._survives = comm.world.members.survives_losses
        if self._survives:
            self._check_survives()
            self._agree_on_losses()

    def rebucket(self, buckets: Sequence[Bucket]) -> None:
        self._lay_out(buckets)

    def _lay_out(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            bucket.lay_out_parameters(self.halves)
        self._buckets = buckets

    # -- methods that algorithms override ----------------------------------------------

    def make_exchange(self) -> Exchange:
        """Return the exchange that averages the parameters."""
        comm, settings = self.context.comm, self.context.settings
        return EXCHANGES[self.communication_type](comm, settings, self._topology)

    def kind_of(self, round_number: int) -> CommunicationType:
        """Return the type of communication in a round."""
        return self.context.settings.communication_type

    def begin(self, bucket: Bucket) -> None:
        """Save ``bucket.parameters.current`` before the first step after a round.

        Like ``before_round`` and ``after_round``, it is not called in a world of one
        unless ``acts_alone``.
        """

    def before_round(self, bucket: Bucket, weights: Weights) -> None:
        """Change ``bucket.parameters.current`` before it is sent (ATC only).

        The method may send more tensors with the same weights and add the operations to
        ``self._more``, which finish with the round.
        """

    def after_round(self, bucket: Bucket) -> None:
        """Change ``bucket.parameters.current``, which holds the round's result.

        ``bucket.parameters.next`` holds the values that were sent.
        """

    def buckets_of(self, round_number: int) -> Sequence[Bucket]:
        """Return the buckets that a round sends. Default: all."""
        return self._buckets

    def send(self, bucket: Bucket, weights: Weights) -> Handle[torch.Tensor]:
        """Start the operation of a bucket. Default: send the parameters themselves."""
        self.before_round(bucket, weights)
        values = bucket.parameters
        values.lend()
        with self._round.starting():
            return self._exchanges[self._kind].start(
                weights, values.current, values.next, name_of_exchange(bucket)
            )

    def receive(self, bucket: Bucket, result: torch.Tensor) -> None:
        """Make the result of ``send`` the values of the parameters."""
        self._report(bucket.parameters.exchange())
        self.after_round(bucket)
        self._is_first_step = True

    def refused(
        self, bucket: Bucket, exchange: Exchange, weights: Weights
    ) -> Operation:
        """Describe the operation of ``send``, which is not started."""
        return exchange.refused(weights, name_of_exchange(bucket))

    @property
    def is_ready(self) -> bool:
        """Whether the round under way, if any, may end now. Default: always."""
        return True

    # -- events -----------------------------------------------------------------------

    def before_forward(self, bucket: Bucket) -> None:
        if self._order == "cta":
            self._start(bucket)

    def before_step(self) -> None:
        if self._order == "cta" and self.context.schedule.is_due:
            self._start_all()
        self._finish_if_ready()
        self._begin_steps()

    def after_step(self) -> None:
        if self._order == "atc" and self.context.schedule.is_due:
            self._start_all()
        self._has_started = False

    def settle(self, *, for_writing: bool) -> None:
        # Before a step of CTA the values are x, final, while peers may be reading them.
        if self._order == "atc" or for_writing:
            self._finish_if_ready()

    @property
    def _has_rounds(self) -> bool:
        return self.context.comm.size > 1 or self.acts_alone

    # -- rounds -----------------------------------------------------------------------

    def _begin_steps(self) -> None:
        """Call ``begin`` before the first step after a round."""
        if self._is_first_step and self._has_rounds:
            self._is_first_step = False
            for bucket in self._buckets:
                self._report(bucket.parameters.check())
                self.begin(bucket)

    def _start_all(self) -> None:
        if not self._has_started:
            # The next forward pass uses the parameters registered first.
            buckets = [*reversed(self.buckets_of(self.context.schedule.round))]
            for position, bucket in enumerate(buckets):
                try:
                    self._start(bucket)
                except Exception as error:
                    first = position + 1 if is_marked(error) else position
                    refuse(self.context.comm, self.left_out(buckets[first:]), error)
                    raise

    def left_out(self, buckets: Sequence[Bucket]) -> Iterator[Operation]:
        """Describe the operations of buckets that this rank does not start."""
        checks = self.context.settings.enable_topo_check
        if self._weights is None or self._survives or checks:
            return
        exchange = self._exchanges[self._kind]
        for bucket in buckets:
            kind, name, needs = self.refused(bucket, exchange, self._weights)
            values = bucket.parameters.current
            yield kind, name, concerned_by(self.context.comm, kind, values, needs)

    def _start(self, bucket: Bucket) -> None:
        if not self._has_started:
            self._begin_round(self.context.schedule.round)
        self._report(bucket.parameters.check())
        if self._weights is None:
            return
        self._round.add(bucket, self.send(bucket, self._weights))

    def _begin_round(self, number: int) -> None:
        """Fix the weights and type of communication for all buckets of a round."""
        context = self.context
        self._has_started = True
        self._weights = None
        self._kind = self.kind_of(number)
        if not self._has_rounds or self._kind is CommunicationType.empty:
            return
        if self._survives:
            self._check_kind()
        if self._regrouping is not None:
            self._regroup(self._regrouping, number)
        if self._kind is CommunicationType.allreduce:
            self._round.begin_together(
                context.comm,
                f"{context.name}.parameters",
                len(self.buckets_of(number)),
                in_background=True,
            )
        else:
            self._round.begin_apart()
        self._weights = self._exchanges[self._kind].weights(number)
        if self._uneven_inputs:
            active = torch.tensor([int(self._is_active)])
            self._counting = allreduce_nonblocking(
                active, op=Sum, name=self._name_of_count, process_set=context.comm
            )

    def _agree_on_losses(self) -> None:
        if self.communication_type is not CommunicationType.allreduce:
            self._regrouping = Regrouping(self.context.comm, self.context.name)

    def obstacle_to_growth(self, size: int) -> str:
        return self._exchanges[self.communication_type].obstacle_to_growth(size)

    def move(self) -> None:
        for exchange in self._exchanges.values():
            exchange.move(self.context.comm)
        # The previous Regrouping still helps ranks that have yet to change.
        self._agree_on_losses()
        self.restart()

    def _check_survives(self) -> None:
        if self._uneven_inputs:
            raise ValueError(
                "DistributedOptimizer: uneven_inputs=True needs all ranks in each "
                "round, so it does not go with bfrun --on-failure continue; leave one "
                "of the two out"
            )

    def _check_kind(self) -> None:
        if self._kind not in (self.communication_type, CommunicationType.allreduce):
            raise ValueError(
                f"DistributedOptimizer: communication_type {self._kind.name} does not "
                "go with bfrun --on-failure continue; use "
                f"{self.communication_type.name}, or leave the option out"
            )

    def _regroup(self, regrouping: Regrouping, number: int) -> None:
        """Change to the graph of the ranks that are left if this round begins it."""
        context = self.context
        left = regrouping.begin_round(number)
        if left is None:
            return
        self._exchanges[self.communication_type].regroup(left)
        self.restart()
        comm = context.comm
        ranks = tuple(comm.ranks[member] for member in left)
        text = (
            f"{context.name}: from round {number} on, the graph has "
            f"{format_ranks(ranks, noun=True)} only"
        )
        comm.world.members.note("regrouped", text, ranks)
        _log.log(logging.WARNING if comm.rank == left[0] else logging.INFO, "%s", text)

    def finalize(self) -> None:
        super().finalize()
        if self._regrouping is not None:
            self._regrouping.close()

    def _finish_if_ready(self) -> None:
        if self.is_ready:
            self._finish()

    def _finish(self) -> None:
        """Wait for the round and make its results the parameters' values."""
        counting, self._counting = self._counting, None
        results, _ = self._round.wait(), self._more.wait()
        for bucket, result in results:
            self.receive(bucket, result)
        if counting is not None:
            self._active_ranks = int(counting.wait())

    def _report(self, adopted: list[str]) -> None:
        if adopted:
            _log.warning(
                "%s: copied in parameters that were given other memory since the last "
                "round: %s",
                self.context.name,
                ", ".join(adopted),
            )

    # -- uneven inputs ----------------------------------------------------------------

    def obstacle_to_join(self) -> str:
        if not self.may_join:
            return (
                "needs the gradients of all ranks, and a rank without data has none; "
                "give all ranks the same number of batches, or use an algorithm that "
                "can mix without gradients, such as neighbor_allreduce or gossip_pga, "
                "with uneven_inputs=True"
            )
        if not self._uneven_inputs:
            return (
                "averages parameters, so all ranks have to pass uneven_inputs=True to "
                "DistributedOptimizer"
            )
        if self.context.settings.has_weights():
            return (
                "has weights set as attributes of the optimizer; pass them by "
                "topology= instead, so that they are known for later rounds"
            )
        return ""

    def continue_until_all_join(self) -> int:
        """Continue mixing until all ranks have joined; return the last one to join."""
        context = self.context
        if context.comm.size == 1:
            return context.comm.ranks[0]
        waited = -1
        self._is_active = False
        self._active_ranks = context.comm.size
        self._finish()
        while self._active_ranks > 0:
            self._has_started = False
            self._begin_steps()
            self._start_all()
            self._finish()
            context.schedule.on_round()
            waited += 1
        self._is_active = True
        self._has_started = False
        return last_to_join(context.comm, waited, context.name)

    def refused_join(self) -> Iterator[Operation]:
        context = self.context
        # A failed check of the topology would end the others' round in its middle.
        if context.comm.size == 1 or context.settings.enable_topo_check:
            return
        number = context.schedule.round
        exchange = self._exchanges[self.kind_of(number)]
        weights = exchange.weights(number)
        yield "allreduce", self._name_of_count, None
        for bucket in self.buckets_of(number):
            yield self.refused(bucket, exchange, weights)

    @property
    def _name_of_count(self) -> str:
        return f"{self.context.name}.active"


def name_of_exchange(bucket: Bucket) -> str:
    """Return the name of the exchange of a bucket."""
    return f"{bucket.name}.parameters"
