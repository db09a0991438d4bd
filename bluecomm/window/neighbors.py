"""The neighbors among which a window is made, and their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bluecomm.ops.neighbor_weights import (
    Weights,
    Wording,
    weight_number,
    weight_pairs,
)
from bluecomm.runtime import Communicator

if TYPE_CHECKING:
    from bluecomm._native import Window


def window_neighbors(comm: Communicator) -> tuple[list[int], list[int]]:
    """Return the in-neighbors and the out-neighbors, in ascending order.

    There are none without a topology.
    """
    if comm.topology is None:
        return [], []
    weights = comm.topology.weights
    return list(weights.src_ranks), list(weights.dst_ranks)


class WindowNeighbors:
    """The neighbors of one window of this rank, and their weights.

    Args:
        name: Name of the window.
        comm: Communicator of the ranks that have the window.
        native: The engine's window.
        dtype: Type of the window's elements.

    Attributes:
        regrouped: Weights and neighbors since the window's last ``regroup``.
    """

    def __init__(
        self, name: str, comm: Communicator, native: Window, dtype: torch.dtype
    ) -> None:
        self._name, self._comm = name, comm
        self._native, self._dtype = native, dtype
        self.regrouped: Weights | None = None

    @property
    def own_weight(self) -> float:
        """Weight of the own value in the topology."""
        if self.regrouped is not None and self.regrouped.self_weight is not None:
            return self.regrouped.self_weight
        topology = self._comm.topology
        return topology.weights.self_weight if topology else 1.0

    @property
    def in_weights(self) -> dict[int, float]:
        """Weight of each in-neighbor in the topology."""
        if self.regrouped is not None:
            return dict(self.regrouped.src_weights or {})
        topology = self._comm.topology
        return dict(topology.weights.src_weights) if topology else {}

    @property
    def out_weights(self) -> dict[int, float]:
        """Weight 1 for each out-neighbor that has a mailbox for this rank."""
        if self.regrouped is not None:
            wanted = set(self.regrouped.dst_weights or ())
            return dict.fromkeys(wanted.intersection(self._native.targets()), 1.0)
        topology = self._comm.topology
        return dict.fromkeys(topology.weights.dst_ranks, 1.0) if topology else {}

    @property
    def collected(self) -> list[int]:
        """The ranks whose values are collected: all that may have left some."""
        if self.regrouped is not None:
            return self._native.sources()
        return sorted(self.in_weights)

    def weights(
        self, operation: str, argument: str, given: Any, default: dict[int, float]
    ) -> list[tuple[int, float]]:
        """Return neighbors and weights in ascending order; ``None`` means ``default``.

        Raises:
            TypeError: A rank is not an integer.
            ValueError: A rank is not a neighbor, that is, a key of ``default``, or a
                weight is not a finite number, or not 1 or 0 although elements are
                integers.
        """
        if given is None:
            pairs = list(default.items())
        else:
            words = Wording(operation, dst=argument)
            comm = self._comm
            pairs = weight_pairs(words, argument, given, comm.rank, comm.size)
        named = {rank for rank, _ in pairs}
        strangers = sorted(named - default.keys() - self._former(argument))
        if strangers:
            raise ValueError(
                f"{operation} {self._name!r}: the ranks of {argument} must be "
                f"neighbors of rank {self._comm.rank} in the topology, "
                f"{sorted(default)}; got {strangers}"
            )
        self._check_integers(operation, argument, [weight for _, weight in pairs])
        return sorted(pairs)

    def self_weight(self, operation: str, given: Any) -> float:
        """Return the weight of the own value.

        Raises:
            ValueError: It is not a finite number, or not 1 or 0 although elements are
                integers.
        """
        weight = weight_number(Wording(operation), "self_weight", given)
        self._check_integers(operation, "self_weight", [weight])
        return weight

    def _check_integers(
        self, operation: str, argument: str, weights: list[float]
    ) -> None:
        """Raise an error if elements of the window's type cannot have these weights."""
        if self._dtype.is_floating_point or all(w in (0.0, 1.0) for w in weights):
            return
        raise ValueError(
            f"{operation} {self._name!r}: elements of type {self._dtype} cannot "
            f"be weighted, got {argument} with {weights}; make the window of "
            "tensor.float(), or use weights of 1 or 0"
        )

    def _former(self, argument: str) -> set[int]:
        """Return neighbors of the graphs before, which may still be named."""
        if self.regrouped is None:
            return set()
        if argument != "dst_weights":
            return set(self._native.sources())
        topology = self._comm.topology
        before = topology.weights.dst_ranks if topology else ()
        return {*before, *self._native.targets()}
