"""How a state saves, restores and sends each kind of object that it consists of."""

from __future__ import annotations

import abc
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from bluecomm.elastic.sampler import ElasticSampler
from bluecomm.elastic.snapshot import snapshot
from bluecomm.ops.objects import allgather_object, broadcast_object
from bluecomm.optim.hooks.model_hooks import without_copies
from bluecomm.optim.local_parameters import local_names
from bluecomm.optim.optimizer_state import broadcast_to_begin_anew
from bluecomm.optim.parameters import broadcast_parameters
from bluecomm.runtime import Communicator

_Value = TypeVar("_Value")


class Handler(abc.ABC, Generic[_Value]):
    """Handles one object, whose content is a state dict.

    Args:
        value: The object.
    """

    kind: str

    def __init__(self, value: _Value) -> None:
        self.value = value

    def read(self) -> Any:
        """Return the content. Its tensors may be those of the object."""
        return self.value.state_dict()  # type: ignore[attr-defined]

    def load(self, state: Any) -> None:
        """Replace the content."""
        self.value.load_state_dict(state)  # type: ignore[attr-defined]

    @abc.abstractmethod
    def sync(self, group: Communicator, root: int, name: str) -> None:
        """Give all ranks of a group the root's content.

        Args:
            group: The ranks.
            root: Number in the world of the rank whose content counts.
            name: Prefix of the operations' names, the same on all ranks.
        """

    def hand_over(
        self, group: Communicator, donor: int, name: str, keeps: bool
    ) -> None:
        """Give newcomers the donor's content.

        All of them take part in the same calls, so a rank that keeps its own content
        gets the donor's, too, and puts back what it keeps.

        Args:
            group: The donor and the newcomers.
            donor: Number of the donor in the world.
            name: Prefix of the operations' names, the same on all ranks.
            keeps: Whether this newcomer keeps the results of its own training.
        """
        self.sync(group, donor, name)

    def reset(self) -> None:
        """Adapt to the ranks that are left. Does nothing by default."""


class ModelHandler(Handler[nn.Module]):
    """Handles a model."""

    kind = "a model"

    def read(self) -> Any:
        with without_copies():
            return self.value.state_dict()

    def sync(self, group: Communicator, root: int, name: str) -> None:
        local = local_names(self.value)
        shared = {key: value for key, value in self.read().items() if key not in local}
        broadcast_parameters(shared, root, process_set=group)

    def hand_over(
        self, group: Communicator, donor: int, name: str, keeps: bool
    ) -> None:
        mine = snapshot(self.read()) if keeps else None
        self.sync(group, donor, name)
        if mine is not None:
            self.load(mine)


class OptimizerHandler(Handler[torch.optim.Optimizer]):
    """Handles a plain or a distributed optimizer.

    The state that an algorithm has on each rank is restored there, but not sent.
    """

    kind = "an optimizer"

    def sync(self, group: Communicator, root: int, name: str) -> None:
        broadcast_to_begin_anew(self.value, root, group)

    def hand_over(
        self, group: Communicator, donor: int, name: str, keeps: bool
    ) -> None:
        mine = snapshot(self.read()["state"]) if keeps else None
        self.sync(group, donor, name)
        if mine is not None:
            # The options and the round are the donor's, such as momentum is its own.
            self.load({**self.read(), "state": mine})


class SamplerHandler(Handler[ElasticSampler]):
    """Handles a sampler. All ranks go to the furthest position of any of them."""

    kind = "a sampler"

    def sync(self, group: Communicator, root: int, name: str) -> None:
        states = allgather_object(self.value.state_dict(), name, process_set=group)
        epoch = states[group.ranks.index(root)]["epoch"]
        positions = [s["processed_num"] for s in states if s["epoch"] == epoch]
        self.load({"epoch": epoch, "processed_num": max(positions)})

    def hand_over(
        self, group: Communicator, donor: int, name: str, keeps: bool
    ) -> None:
        # The other ranks of the primary are where the donor is.
        state = broadcast_object(self.read(), donor, name, process_set=group)
        self.load(state)

    def reset(self) -> None:
        self.value.reset()


class StatefulHandler(Handler[Any]):
    """Handles any other object with a state dict, such as a scheduler."""

    kind = "an object with a state dict"

    def sync(self, group: Communicator, root: int, name: str) -> None:
        state = broadcast_object(self.read(), root, name, process_set=group)
        if group.world.rank != root:
            self.load(state)


def handler_of(value: Any) -> Handler[Any] | None:
    """Return a handler of an object, or ``None`` if it is a plain object."""
    if isinstance(value, nn.Module):
        return ModelHandler(value)
    if isinstance(value, torch.optim.Optimizer):
        return OptimizerHandler(value)
    if isinstance(value, ElasticSampler):
        return SamplerHandler(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return StatefulHandler(value)
    return None
