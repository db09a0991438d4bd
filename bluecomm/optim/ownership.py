"""Records which distributed optimizer of this process owns a parameter."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from bluecomm.errors import BluecommError
from bluecomm.ops.refusal import Operation
from bluecomm.optim.hooks.model_hooks import origin_of
from bluecomm.runtime import Communicator, current_process


class ParameterOwner(Protocol):
    """The part of a distributed optimizer that concerns its parameters."""

    @property
    def is_live(self) -> bool:
        """Whether the optimizer exists and still owns its parameters."""

    def settle(self, *, for_writing: bool) -> None:
        """Make the values of the parameters final."""

    def drain(self) -> None:
        """Finish the round under way while the world still exists."""

    def retire(self) -> None:
        """Finish the round under way and give up the parameters."""

    @property
    def admits_newcomers(self) -> bool:
        """Whether it can go on in another generation, with newcomers."""

    def obstacle_to_growth(self, size: int) -> str:
        """Return why it cannot go on with ``size`` ranks, as a clause, or ""."""

    def move(self, comm: Communicator) -> None:
        """Go on in another world, which has the same ranks, and perhaps more."""

    @property
    def joins_in_engine(self) -> bool:
        """Whether its exchanges go on while the engine answers for joined ranks."""

    @property
    def comm(self) -> Communicator:
        """Ranks that take part in its exchanges."""

    def join(self) -> int:
        """Take part without data until all ranks do; return the last rank to join."""

    def refused_join(self) -> Iterator[Operation]:
        """Describe a refused call of ``join``; raise as the call would."""


_log = logging.getLogger("bluecomm")

# Parameter -> weak reference to its owner.
_owner_of = WeakTensorKeyDictionary()
_owners: list[weakref.ref[ParameterOwner]] = []
# Owners that live on after their models; see ``keep``.
_kept: set[ParameterOwner] = set()
_changing_owners = threading.Lock()
_numbers: weakref.WeakKeyDictionary[Communicator, Iterator[int]] = (
    weakref.WeakKeyDictionary()
)


def next_number(comm: Communicator) -> int:
    """Return how many distributed optimizers a communicator has had before."""
    return next(_numbers.setdefault(comm, itertools.count()))


def take_over(parameters: Iterable[torch.Tensor], owner: ParameterOwner) -> None:
    """Make ``owner`` the owner of parameters; earlier owners retire."""
    reference = weakref.ref(owner)
    parameters = list(parameters)
    for earlier in owners_of(parameters):
        earlier.retire()
    _kept.difference_update([one for one in _kept if one.comm.world.is_closed])
    for parameter in parameters:
        _owner_of[parameter] = reference
    if not _owners:
        current_process().before_shutdown(_drain_all)
    with _changing_owners:
        _owners[:] = [ref for ref in _owners if ref() is not None] + [reference]


def keep(owner: ParameterOwner) -> None:
    """Let an owner outlive its models, until ``release`` or the end of its world.

    Python frees a dropped model at another time on each rank. An owner that the other
    ranks wait for at the end of the world must still be there then, on every rank.
    """
    _kept.add(owner)


def release(owner: ParameterOwner) -> None:
    """Let an owner end with its models again."""
    _kept.discard(owner)


def owners_of(tensors: Iterable[torch.Tensor]) -> list[ParameterOwner]:
    """Return the owners of some parameters (or of copies of them), each once."""
    found: dict[ParameterOwner, None] = {}
    for tensor in tensors:
        reference = _owner_of.get(origin_of(tensor))  # type: ignore[no-untyped-call]
        owner = reference() if reference is not None else None
        if owner is not None:
            found[owner] = None
    return list(found)


def settle(tensors: Iterable[torch.Tensor], *, for_writing: bool) -> None:
    """Make the values of those parameters final that belong to an optimizer."""
    for owner in owners_of(tensors):
        owner.settle(for_writing=for_writing)


def live_owners() -> list[ParameterOwner]:
    """Return the owners whose optimizers exist, in order of creation."""
    found = [reference() for reference in _owners]
    return [owner for owner in found if owner is not None and owner.is_live]


def settle_all() -> None:
    """Finish all rounds, with final parameters, before the ranks change their world."""
    for reference in list(_owners):
        owner = reference()
        if owner is not None:
            owner.settle(for_writing=True)
            owner.drain()


def move_all(before: Communicator, after: Communicator) -> None:
    """Have all owners go on in another world, as ``ParameterOwner.move`` says."""
    _numbers[after] = itertools.count(next_number(before))
    for reference in list(_owners):
        owner = reference()
        if owner is not None:
            owner.move(after)


def _drain_all() -> None:
    """Finish all rounds under way before the world ends."""
    for reference in list(_owners):
        owner = reference()
        if owner is not None:
            try:
                owner.drain()
            except (BluecommError, RuntimeError, FloatingPointError) as error:
                _log.warning("the last round was not finished: %s", error)
    _kept.clear()
