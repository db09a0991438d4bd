"""Builds the calls that measure a case, for peers that only send messages."""

from __future__ import annotations

import abc
from collections.abc import Callable

import torch

from bluecomm.bench.operations import Case, Neighborhood, exchange_of
from bluecomm.bench.timing import Call, after_writing

Prepared = tuple[torch.Tensor, Call]
"""The input of a call, and the call."""


class PeerCalls(abc.ABC):
    """Builds calls for a peer that has messages, but no operations with neighbors.

    A subclass has a method ``_<kind>(case)`` for each other kind of operation.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def call_for(self, case: Case) -> Call:
        """Return the call that a case measures."""
        make: Callable[[Case], Prepared] = getattr(self, f"_{case.operation.kind}")
        tensor, call = make(case)
        return after_writing(tensor, call) if case.is_written else call

    @abc.abstractmethod
    def _exchange(
        self, tensor: torch.Tensor, exchange: Neighborhood, output: torch.Tensor
    ) -> Call:
        """Return the call that writes an exchange's weighted sum to ``output``."""

    def _neighbor_allreduce(self, case: Case) -> Prepared:
        exchange = exchange_of(case.operation.kind, self._rank, self._size)
        tensor = zeros(case)
        if exchange is None:
            return tensor, lambda: None
        output = tensor if case.operation.in_place else zeros(case)
        return tensor, self._exchange(tensor, exchange, output)

    _one_peer = _pair_gossip = _neighbor_allreduce


def zeros(case: Case, blocks: int = 1) -> torch.Tensor:
    """Return a case's tensor, or one of its blocks; its pages have been written."""
    return torch.empty(case.count // blocks, dtype=case.dtype).fill_(0)
