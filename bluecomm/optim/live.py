"""The distributed optimizers of this process, and whose a parameter is."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from bluecomm.errors import BluecommError
from bluecomm.optim.hooks.model_hooks import origin_of
from bluecomm.runtime import Communicator, current_process

if TYPE_CHECKING:
    from bluecomm.optim.coordinator import Coordinator

_log = logging.getLogger("bluecomm")

# Parameter -> weak reference to the coordinator that lays it out.
_owners = WeakTensorKeyDictionary()
_coordinators: list[weakref.ref[Coordinator]] = []
_created: weakref.WeakKeyDictionary[Communicator, int] = weakref.WeakKeyDictionary()


def next_number(comm: Communicator) -> int:
    """Return how many distributed optimizers a communicator has had before."""
    number = _created.get(comm, 0)
    _created[comm] = number + 1
    return number


def take_over(parameters: Iterable[torch.Tensor], coordinator: Coordinator) -> None:
    """Make a coordinator the owner of parameters; earlier owners retire."""
    me = weakref.ref(coordinator)
    parameters = list(parameters)
    for earlier in owners_of(parameters):
        earlier.retire()
    for parameter in parameters:
        _owners[parameter] = me
    if not _coordinators:
        current_process().before_shutdown(_settle_all)
    _coordinators[:] = [ref for ref in _coordinators if ref() is not None]
    _coordinators.append(me)


def owners_of(tensors: Iterable[torch.Tensor]) -> list[Coordinator]:
    """Return the coordinators of some parameters (or copies), each once."""
    found: dict[Coordinator, None] = {}
    for tensor in tensors:
        reference = _owners.get(origin_of(tensor))  # type: ignore[no-untyped-call]
        owner = reference() if reference is not None else None
        if owner is not None:
            found[owner] = None
    return list(found)


def settle(tensors: Iterable[torch.Tensor], *, for_writing: bool) -> None:
    """Make the values of parameters final, wherever they belong to an optimizer."""
    for owner in owners_of(tensors):
        owner.settle(for_writing=for_writing)


def live_coordinators() -> list[Coordinator]:
    """Return the coordinators whose optimizers exist, in order of creation."""
    found = [reference() for reference in _coordinators]
    return [c for c in found if c is not None and c.is_live]


def _settle_all() -> None:
    """Finish rounds under way while there is a world to finish them."""
    for reference in list(_coordinators):
        coordinator = reference()
        if coordinator is not None:
            try:
                coordinator.drain()
            except (BluecommError, RuntimeError) as error:
                _log.warning("the last round was not finished: %s", error)
