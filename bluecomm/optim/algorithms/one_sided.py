"""Asynchronous averaging through windows, without waiting for other ranks.

A round involves only this rank. It begins with the first forward pass of a step and
ends before the user's own step. In between, the parameters go to the neighbors'
windows, or theirs come here, without any action of the neighbors' programs. A rank uses
the latest values of its neighbors, however old, so a slow rank slows down no other.

When a rank is lost, each of the others changes to the graph of those that are left at
the beginning of its own next round: as no rank waits for another, they need not agree
on a round. docs/survival.md has the states of the edges.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from bfrun.wording import format_ranks
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.exchanges.regrouped import RegroupedWeights, regroup_static
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Handle, current_communicator
from bluecomm.runtime.handle import wait_all
from bluecomm.window.creation import win_create, win_free
from bluecomm.window.get import win_get_nonblocking
from bluecomm.window.live import find
from bluecomm.window.put import win_accumulate_nonblocking, win_put_nonblocking
from bluecomm.window.update import win_update, win_update_then_collect

_log = logging.getLogger("bluecomm")

# A rank whose share of push-sum's mass is smaller keeps it until it receives some.
_LEAST_P = 0.125


class OneSided(Algorithm):
    """Base of the asynchronous algorithms, with a window for each bucket.

    Making such an optimizer is collective, and so is giving its parameters to another
    one. While it exists, the topology cannot be changed.

    Args:
        window_prefix: Put before the names of the windows.

    Raises:
        ValueError: The communicator does not contain all ranks of the world.
    """

    flat_parameters = True
    survives_losses = True
    has_windows = True
    depends_on_speed = True
    honours = frozenset({"backward_passes_per_step", "num_steps_per_communication"})
    zero_init: ClassVar[bool] = False

    def __init__(self, *, window_prefix: str | None = None) -> None:
        self._prefix = f"{window_prefix}." if window_prefix else ""
        self._buckets: Sequence[Bucket] = ()
        self._under_way: list[tuple[Bucket, Handle[bool]]] = []
        self._has_started = False
        self._gone = 0  # number of lost ranks without which the windows' graph is made

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        # Each in-neighbor's mailbox has three slots. The published value has two slots
        # more than there are out-neighbors.
        return 2 + (4 * neighbors + 2 if ranks > 1 else 0)

    def setup(self, buckets: Sequence[Bucket]) -> None:
        if self.context.comm is not current_communicator():
            raise ValueError(
                f"{type(self).__name__} acts among all ranks; leave out process_set"
            )
        for bucket in buckets:
            bucket.lay_out_parameters(halves=1)
        if self.context.comm.size > 1:
            self._buckets = buckets
            for bucket in buckets:
                value, name = self.value_of(bucket), self.name_of(bucket)
                win_create(value, name, zero_init=self.zero_init)

    def name_of(self, bucket: Bucket) -> str:
        """Return the name of a bucket's window."""
        return f"{self._prefix}{bucket.name}.window"

    # -- methods that the algorithms override ------------------------------------------

    def value_of(self, bucket: Bucket) -> torch.Tensor:
        """Return the tensor of a bucket's window."""
        return bucket.parameters.current

    @abc.abstractmethod
    def start(self, bucket: Bucket) -> Handle[bool] | None:
        """Start the put or get that runs during forward and backward, if any."""

    @abc.abstractmethod
    def combine(self, bucket: Bucket) -> None:
        """Combine the window's latest values into the values of the parameters."""

    def on_regrouped(self, bucket: Bucket) -> None:
        """Change what the algorithm keeps, because the graph has changed."""

    # -- events ------------------------------------------------------------------------

    def before_forward(self, bucket: Bucket) -> None:
        self._start(bucket)

    def before_step(self) -> None:
        if self.context.schedule.is_due and not self._has_started:
            for bucket in reversed(self._buckets):
                self._start(bucket)
        self._finish()

    def after_step(self) -> None:
        self._has_started = False

    def settle(self, *, for_writing: bool) -> None:
        # Until the step, the values are final: neighbors get the same ones.
        if for_writing:
            self._finish()

    def drain(self) -> None:
        self._finish()

    def obstacle_to_join(self) -> str:
        return (
            "waits for no other rank, so a rank that runs out of data just stops; call "
            "bf.barrier() where all ranks have to meet, and keep the process running "
            "until then"
        )

    def finalize(self) -> None:
        self._finish()
        for bucket in self._buckets:
            win_free(self.name_of(bucket))

    def _start(self, bucket: Bucket) -> None:
        if bucket not in self._buckets:
            return
        if not self._has_started:
            self._regroup()
        self._has_started = True
        if adopted := bucket.parameters.check():
            _log.warning(
                "%s: copied in parameters that were given other memory since the last "
                "round: %s",
                self.context.name,
                ", ".join(adopted),
            )
        handle = self.start(bucket)
        if handle is not None:
            self._under_way.append((bucket, handle))

    def _regroup(self) -> None:
        """Change to the graph of the ranks that are left, if some have gone."""
        context = self.context
        comm = context.comm
        members = comm.world.members
        gone = members.gone
        if len(gone) == self._gone:
            return
        self._gone = len(gone)
        left = tuple(rank for rank in comm.ranks if rank not in gone)
        schedule = regroup_static(comm.topology, left)
        weights = RegroupedWeights(schedule, left, comm.rank).at(0)
        for bucket in self._buckets:
            find("regroup", self.name_of(bucket)).regroup(weights)
            self.on_regrouped(bucket)
        text = (
            f"{context.name}: on rank {comm.rank}, the graph has "
            f"{format_ranks(left, noun=True)} only"
        )
        members.note("regrouped", text, left)
        _log.log(logging.WARNING if comm.rank == left[0] else logging.INFO, "%s", text)

    @torch.no_grad()
    def _finish(self) -> None:
        """Wait for this rank's own requests, then combine."""
        under_way, self._under_way = self._under_way, []
        wait_all([handle for _, handle in under_way])
        for bucket, _ in under_way:
            self.combine(bucket)


class _Averaging(OneSided):
    """Base of the algorithms that average with the weights of the topology."""

    def combine(self, bucket: Bucket) -> None:
        settings = self.context.settings
        win_update(self.name_of(bucket), settings.self_weight, settings.src_weights)


@register_algorithm("win_put")
class WinPut(_Averaging):
    """Asynchronous averaging: each rank puts its parameters to its out-neighbors.

    ``x_i <- step(W_ii x_i + sum_j W_ij v_j, g(x_i))``, where ``v_j`` is the value that
    rank ``j`` has put last. With a doubly stochastic ``W`` and ranks of equal speed,
    the mean of ``x`` changes only by the steps, as with ``neighbor_allreduce``. A rank
    that is ahead counts for more.

    ``self_weight``, ``src_weights`` and ``dst_weights`` of the optimizer are used.

    Args:
        window_prefix: Put before the names of the windows.

    Source:
        Ying et al., "BlueFog: Make Decentralized Algorithms Practical for Optimization
        and Deep Learning", 2021, arXiv:2111.04287. Lian et al., "Asynchronous
        Decentralized Parallel Stochastic Gradient Descent", ICML 2018,
        arXiv:1710.06952.
    """

    works_on_devices = True

    def start(self, bucket: Bucket) -> Handle[bool]:
        return win_put_nonblocking(
            bucket.parameters.current,
            self.name_of(bucket),
            dst_weights=self.context.settings.dst_weights,
        )


@register_algorithm("pull_get")
class PullGet(_Averaging):
    """Asynchronous averaging: each rank gets the parameters of its in-neighbors.

    Like ``win_put``, but ``v_j`` is the value that rank ``j`` published last, when its
    own round began. Only values that a rank asks for are sent. ``self_weight`` and
    ``src_weights`` of the optimizer are used.

    Args:
        window_prefix: Put before the names of the windows.

    Source:
        As for ``win_put``.
    """

    works_on_devices = True

    def start(self, bucket: Bucket) -> Handle[bool]:
        sources = self.context.settings.src_weights
        return win_get_nonblocking(
            self.name_of(bucket),
            None if sources is None else dict.fromkeys(sources, 1.0),
        )


@register_algorithm("push_sum")
class PushSum(OneSided):
    """Stochastic gradient push, asynchronous, on any strongly connected digraph.

    Rank ``i`` holds ``x_i`` and a share ``p_i`` of the mass, 1 at the start. Its
    parameters are ``z_i = x_i / p_i``. A round, with ``a_i = 1 / (out-neighbors + 1)``:

        x_i <- p_i z_i  (which takes in the last step),
        keep a_i (x_i, p_i), add as much to the slot of each out-neighbor,
        add what the in-neighbors have left here, z_i <- x_i / p_i, and step

    Each step changes ``z_i`` by exactly the user's step, and each round makes ``z_i`` a
    weighted average of parameters that ranks have pushed. A round loses nothing and
    counts nothing twice: together with what is under way, ``sum_i p_i`` stays the
    number of ranks, and ``sum_i x_i`` changes only by ``p_i`` times each step. So
    without steps ``z`` goes to ``sum_i x_i / n`` exactly, on graphs that have no doubly
    stochastic weights, and however far ranks are apart in time. The ``p_i`` of a rank
    that is faster than its in-neighbors falls, so ranks of unequal speed contribute
    about equally per second. A rank whose ``p`` is below 1/8 pushes nothing until it
    has received some. When a rank is lost, its ``x`` and ``p`` vanish together, with
    what is on its way to it, and each of the others sets its ``p`` to 1 without
    changing its ``z``.

    A change of the parameters by other means than the optimizer's step counts as a
    step. ``dst_weights`` of the optimizer may name some of the out-neighbors; with
    ``self_weight`` its values are used, otherwise equal ones. They must sum to 1.

    Args:
        window_prefix: Put before the names of the windows.
        exact_step_sum: Add each step to ``x_i`` at full size, as the paper does, so
            that ``sum_i x_i`` changes by exactly the sum of all steps and each step of
            each rank counts the same. In return a step moves ``z_i`` by ``1 / p_i``
            times its size, once the next round begins.

    Source:
        Assran, Loizou, Ballas and Rabbat, "Stochastic Gradient Push for Distributed
        Deep Learning", ICML 2019, arXiv:1811.10792. Kempe, Dobra and Gehrke,
        "Gossip-Based Computation of Aggregate Information", FOCS 2003.
    """

    works_on_devices = True
    zero_init = True

    def __init__(
        self, *, window_prefix: str | None = None, exact_step_sum: bool = False
    ) -> None:
        super().__init__(window_prefix=window_prefix)
        self._exact_step_sum = exact_step_sum
        self._biased: dict[Bucket, torch.Tensor] = {}

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        # x beside the parameters, z.
        return super().memory_in_models(ranks, neighbors) + (ranks > 1)

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        for bucket in self._buckets:
            find("push_sum", self.name_of(bucket)).has_p = True

    def value_of(self, bucket: Bucket) -> torch.Tensor:
        if bucket not in self._biased:
            current = bucket.parameters.current
            self._biased[bucket] = bucket.empty().copy_(current)
        return self._biased[bucket]

    @torch.no_grad()
    def start(self, bucket: Bucket) -> Handle[bool] | None:
        name, biased = self.name_of(bucket), self._biased[bucket]
        p = find("push_sum", name).native.p
        if self._exact_step_sum:
            # x + (z - x / p), where z has been stepped and x has not.
            biased.mul_(1 - 1 / p).add_(bucket.parameters.current)
        else:
            torch.mul(bucket.parameters.current, p, out=biased)
        keeps, gives = self._shares(name)
        if p < _LEAST_P:
            keeps, gives = 1.0, {}
        return win_accumulate_nonblocking(biased, name, keeps, gives)

    def combine(self, bucket: Bucket) -> None:
        name = self.name_of(bucket)
        biased = win_update_then_collect(name, require_mutex=False)
        p = find("push_sum", name).native.p
        torch.div(biased, p, out=bucket.parameters.current)

    @torch.no_grad()
    def on_regrouped(self, bucket: Bucket) -> None:
        # Mass that went to the lost rank is missing: with a p below 1/8 everywhere,
        # nobody would push any more.
        native = find("push_sum", self.name_of(bucket)).native
        self._biased[bucket].div_(native.p)
        native.scale_p(1 / native.p)

    def _shares(self, name: str) -> tuple[float, dict[int, float]]:
        """Return the share that this rank keeps, and the share of each target."""
        settings = self.context.settings
        given = settings.dst_weights
        window = find("push_sum", name)
        topology, reached = window.comm.topology, set(window.native.targets())
        # A share of a lost rank would be lost as well, so this rank keeps it.
        lost = set(topology.weights.dst_ranks if topology else ()) - reached
        if given is None:
            targets = sorted(window.neighbors.out_weights.keys() - lost)
        else:
            targets = [rank for rank in given if rank not in lost]
        survives = window.comm.world.members.survives_losses
        if survives and not targets and not isinstance(given, Mapping):
            return 1.0, {}
        if settings.self_weight is None:
            share = 1 / (len(targets) + 1)
            return share, dict.fromkeys(targets, share)
        keeps = settings.self_weight
        if isinstance(given, Mapping):
            shares = {rank: given[rank] for rank in targets}
            keeps += sum(given.values()) - sum(shares.values())
        else:
            share = (1 - keeps) / max(1, len(targets))
            shares = dict.fromkeys(targets, share)
        total = keeps + sum(shares.values())
        if abs(total - 1) > 1e-6:
            raise ValueError(
                "push_sum: self_weight and dst_weights must sum to 1, so that nothing "
                f"is lost; got {settings.self_weight} and {shares}"
            )
        return keeps, shares
