"""Base of the algorithms whose neighbors exchange codes of differences."""

from __future__ import annotations

import abc
import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bfrun.wording import format_ranks
from bluecomm.compression import Codec
from bluecomm.device.values import values_beside
from bluecomm.errors import MismatchError
from bluecomm.ops.neighbor_weights import Weights
from bluecomm.ops.refusal import Operation, told
from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.coded_differences import (
    CodedDifferences,
    PublishedChange,
    StateRound,
)
from bluecomm.optim.exchanges.exchange import Exchange
from bluecomm.optim.exchanges.machine_ring import MachineRing
from bluecomm.optim.exchanges.symmetric import SymmetricExchange
from bluecomm.optim.machine_mean import MachineMean, Published
from bluecomm.optim.machines import Machines
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import name_of
from bluecomm.runtime import Communicator, Handle, parameters
from bluecomm.runtime.handle import MappedHandle


class CodedAveraging(StatefulAveraging, abc.ABC):
    """Neighbors publish tensors by codes of their changes, after the user's step.

    The state is zero at first. The first round sends the whole difference, which is
    then the value, in full precision: so copies start right, even if the parameters of
    the ranks differ. The same round begins a new state on all ranks after the weights
    of the graph have changed. Later rounds send codes.

    A difference with an infinity or a NaN, or too large for the codec, is sent and
    added by nobody. The sender and its neighbors raise an error at the end of the
    round, and their states still belong together.

    A hierarchical algorithm takes the mean of each machine in full precision. The first
    ranks form a ring, publish the means and keep the state, and all ranks of a machine
    get the same bits. On a single machine nothing is encoded.

    Args:
        codec: Encodes the differences.
        hierarchical: Whether machines publish tensors, instead of ranks.
        uneven_inputs: Let ranks ``join`` when they run out of data.
    """

    communication_type = CommunicationType.neighbor_allreduce
    # float16 and bfloat16 would lose small changes.
    at_least = torch.float32

    def __init__(
        self,
        codec: Codec,
        *,
        hierarchical: bool = False,
        topology: object = None,
        uneven_inputs: bool = False,
    ) -> None:
        if not isinstance(codec, Codec):
            raise TypeError(
                "codec must be a codec of bluecomm.compression, such as ScaledSign(), "
                f"got {codec!r}"
            )
        super().__init__(order="atc", topology=topology, uneven_inputs=uneven_inputs)
        self._codec = codec
        self._is_hierarchical = hierarchical
        if hierarchical:
            self.communication_type = CommunicationType.hierarchical_neighbor_allreduce
        self._machines: Machines | None = None
        self._means: dict[Bucket, MachineMean] = {}
        self._coded: dict[Bucket, CodedDifferences] = {}
        self._graph: SymmetricExchange | MachineRing
        self._progress = StateRound(0, 0)
        # The runs of the neighbors, and the graph, whose changes the state contains.
        self._runs: dict[int, int] = {}
        self._mixed_by = ""
        self._is_under_way = False
        # Names of the parameters that could not be encoded, and the ranks that sent
        # them.
        self._not_finite: dict[str, list[int]] = {}

    # -- methods that algorithms override ----------------------------------------------

    @abc.abstractmethod
    def difference(self, bucket: Bucket, current: torch.Tensor) -> torch.Tensor:
        """Return what this rank is to send.

        Args:
            bucket: The bucket.
            current: Its parameters after the user's step, in the type of the state;
                must not be changed.
        """

    @abc.abstractmethod
    def add_own(self, bucket: Bucket, weight: float, change: torch.Tensor) -> None:
        """Add the difference that this rank has sent, as all ranks decode it."""

    @abc.abstractmethod
    def add_neighbor(
        self, bucket: Bucket, member: int, weight: float, change: torch.Tensor
    ) -> None:
        """Add the difference that a neighbor has sent, as all ranks decode it."""

    @abc.abstractmethod
    def combined(self, bucket: Bucket, current: torch.Tensor) -> torch.Tensor:
        """Return the new parameters.

        Args:
            bucket: The bucket.
            current: As in ``difference``.
        """

    # -- rounds ------------------------------------------------------------------------

    def setup(self, buckets: Sequence[Bucket]) -> None:
        if self._is_hierarchical and self._has_rounds:
            self._machines = Machines.of(self.context)
            if not self._publishes:
                self.keeps = ()
        super().setup(buckets)

    @property
    def publishers(self) -> Communicator:
        """The ranks that publish tensors; a member is a node of the graph."""
        if self._machines is None:
            return self.context.comm
        return self._machines.first_ranks

    @property
    def _publishes(self) -> bool:
        """Whether this rank publishes tensors."""
        return self.publishers.included and self.publishers.size > 1

    def make_exchange(self) -> Exchange:
        comm, settings = self.context.comm, self.context.settings
        method = name_of(type(self))
        if self._is_hierarchical:
            self._graph = MachineRing(comm, settings, method)
        else:
            self._graph = SymmetricExchange(
                comm, settings, self._topology, method=method, is_lazy=False
            )
        return self._graph

    def restart(self) -> None:
        """Begin a new state; all ranks do so in the same round."""
        self._progress = StateRound(0, 0)
        for name in self.keeps:
            self.memory.zero(name)

    def send(self, bucket: Bucket, weights: Weights) -> Handle[torch.Tensor]:
        if self._kind is not self.communication_type:
            return super().send(bucket, weights)
        if not self._is_under_way:
            self._begin()
        current = bucket.parameters.current.to(self.memory.dtype_for(bucket))
        bucket.parameters.lend()
        if self._machines is None:
            handle = self._publish(bucket, weights, current)
        else:
            handle = self._means[bucket].start(
                current,
                lambda mean: self._publish(bucket, weights, mean),
                lambda: [_operation(bucket, weights)],
                [self.context.comm.machine_rank, *_peers_of(weights)[0]],
            )

        def finish(published: Published) -> torch.Tensor:
            for position, member in published.not_finite:
                ranks = self._not_finite.setdefault(bucket.slots[position].name, [])
                ranks += self._ranks_of(member)
            result, target = published.values, bucket.parameters.next
            if result is None:
                return target.copy_(current)
            if self.is_on_host:
                result = values_beside(target, result)
            return target.copy_(result)

        return MappedHandle(handle, finish)

    def _publish(
        self, bucket: Bucket, weights: Weights, current: torch.Tensor
    ) -> Handle[Published]:
        """Start to exchange the changes of a bucket with the neighbors.

        Args:
            bucket: The bucket.
            weights: The weights of the round.
            current: As in ``difference``.
        """
        sources, destinations = _peers_of(weights)
        checks = self.context.settings.enable_topo_check and self._machines is None
        handle = self._coded[bucket].start(
            self.difference(bucket, current),
            self._progress,
            sources,
            destinations,
            _name_of(bucket),
            enable_topo_check=checks,
        )

        def finish(messages: Mapping[int, PublishedChange]) -> Published:
            own = messages[self.publishers.rank]
            received = {one: messages[one] for one in sources}
            self._add(bucket, weights, own, received)
            not_finite = [
                (position, member)
                for member, message in messages.items()
                for position in message.not_finite
            ]
            is_intact = own.values is not None
            values = self.combined(bucket, current) if is_intact else None
            return Published(values, not_finite)

        return MappedHandle(handle, finish)

    def _ranks_of(self, member: int) -> list[int]:
        """Return the ranks whose values a member publishes."""
        comm = self.context.comm
        members = [member]
        if self._machines is not None:
            members = comm.layout.members(member)
        return [comm.ranks[one] for one in members]

    def refused(
        self, bucket: Bucket, exchange: Exchange, weights: Weights
    ) -> Operation:
        if exchange is not self._graph:
            return super().refused(bucket, exchange, weights)
        return _operation(bucket, weights)

    def left_out(self, buckets: Sequence[Bucket]) -> Iterator[Operation]:
        if self._machines is None:
            return super().left_out(buckets)
        return iter(())  # a machine's exchange refuses its own operations

    def refused_join(self) -> Iterator[Operation]:
        if self._machines is None:
            return super().refused_join()
        return iter(())  # a round begins with operations of other communicators

    def _make_memory(self, buckets: Sequence[Bucket]) -> None:
        machines = self._machines
        # Without NCCL the thread of callbacks adds, outside the program's stream.
        self.is_on_host = machines is not None and not all(
            machines.adds_on(bucket.staging, bucket.dtype)
            for bucket in buckets
            if bucket.staging is not None
        )
        super()._make_memory(buckets)
        if self._has_rounds and self._publishes:
            self._coded = {
                bucket: CodedDifferences(
                    self.publishers, bucket, self._codec, on_host=self.is_on_host
                )
                for bucket in buckets
            }
        if machines is not None:
            self._means = {
                bucket: MachineMean(
                    machines,
                    bucket,
                    self.memory.dtype_for(bucket),
                    on_host=self.is_on_host,
                )
                for bucket in buckets
            }

    def _begin(self) -> None:
        """Begin the first exchange of a round."""
        self._is_under_way = True
        if self._mixed_by != self._graph.description:
            self._mixed_by = self._graph.description
            self.restart()
        if self._progress.rounds == 0:
            self._progress = StateRound(secrets.randbits(62), 0)
            self._runs = {}

    def _add(
        self,
        bucket: Bucket,
        weights: Weights,
        own: PublishedChange,
        received: Mapping[int, PublishedChange],
    ) -> None:
        """Add what this rank and its neighbors have sent to the state."""
        for member, message in received.items():
            self._check(member, message.progress)
        if own.values is not None:
            self.add_own(bucket, weights.self_weight or 0.0, own.values)
        for member, message in received.items():
            if message.values is not None:
                weight = (weights.src_weights or {})[member]
                self.add_neighbor(bucket, member, weight, message.values)

    def _check(self, member: int, progress: StateRound) -> None:
        """Raise unless the state contains all earlier changes of a neighbor's run.

        Raises:
            MismatchError: It does not.
        """
        comm, rounds = self.publishers, self._progress.rounds
        if rounds == progress.rounds == 0:
            self._runs[member] = progress.run
        if (progress.rounds, progress.run) == (rounds, self._runs.get(member)):
            return
        peer = comm.ranks[member]
        what = f"rank {peer} sent a change of a state that this rank has no copy of"
        if progress.rounds != rounds:
            what = (
                f"rank {peer} is in round {progress.rounds} of its state, and this "
                f"rank in round {rounds}"
            )
        raise MismatchError.describe(
            what,
            operation="DistributedOptimizer",
            name=self.context.name,
            rank=comm.ranks[comm.rank],
            peers=[peer],
            remedy="Load on all ranks the states that they saved at the same step of "
            "one run, or drop the key 'bluecomm' of all of them, and the algorithm "
            "begins anew",
        )

    def _finish(self) -> None:
        run, rounds = self._progress.run, self._progress.rounds
        try:
            super()._finish()
        except Exception:
            # Neighbors may have added a change that this rank has not added, or the
            # other way around, so their states no longer belong together.
            run, self._runs = secrets.randbits(62), {}
            raise
        finally:
            if self._is_under_way:
                self._is_under_way = False
                self._progress = StateRound(run, rounds + 1)
        not_finite, self._not_finite = self._not_finite, {}
        if not_finite:
            raise self._error(not_finite)

    def _error(self, not_finite: Mapping[str, Sequence[int]]) -> FloatingPointError:
        found = ", ".join(
            f"{name!r} on {format_ranks(sorted(set(ranks)), noun=True)}"
            for name, ranks in not_finite.items()
        )
        # The other neighbors of these ranks raise it, too.
        return told(
            FloatingPointError(
                f"DistributedOptimizer: parameters are not finite, or too large for "
                f"{self._codec}, so {name_of(type(self))} cannot send them: {found}. "
                "Their neighbors have kept what these ranks sent before. Keep the "
                "parameters finite: lower the learning rate, clip gradients, or scale "
                "the loss with a GradScaler, which skips steps with infinities"
            )
        )

    # -- checkpoints -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "progress": list(dataclasses.astuple(self._progress)),
            "runs": dict(self._runs),
            "graph": self._mixed_by,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._progress = StateRound(*state.get("progress", (0, 0)))
        self._runs = dict(state.get("runs", {}))
        self._mixed_by = state.get("graph", "")


def _peers_of(weights: Weights) -> tuple[list[int], list[int]]:
    """Return the members that a rank receives from and sends to."""
    return list(weights.src_weights or ()), list(weights.dst_weights or ())


def _operation(bucket: Bucket, weights: Weights) -> Operation:
    """Describe the exchange of a bucket, which is not started."""
    sources, destinations = _peers_of(weights)
    needs = parameters(
        sources=tuple((member, 1.0) for member in sources),
        destinations=tuple((member, 1.0) for member in destinations),
    )
    return "neighbor_allgather", _name_of(bucket), needs


def _name_of(bucket: Bucket) -> str:
    """Return the name of the exchange of a bucket."""
    return f"{bucket.name}.differences"
