"""The ranks that share a dataset: bluecomm's, those of ``torch.distributed``, or one.

Samplers and datasets need little of a world: their number in it, and what the other
ranks say. So they work in a job of bluecomm, and in one that uses only
``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch.distributed as dist

from bfrun.wording import format_ranks
from bluecomm.basics import is_initialized
from bluecomm.elastic.group import current_group
from bluecomm.ops.objects import allgather_object
from bluecomm.runtime import current_communicator

_Value = TypeVar("_Value")


class DataWorld:
    """This rank's number among the ranks that share a dataset.

    Attributes:
        rank: Number of this rank.
        size: Number of ranks.
        part: Number of this rank among those whose values ``gather`` returns, and their
            number.
        identity: An object, another one when the ranks have changed.
    """

    def __init__(self, rank: int, size: int, identity: object = None) -> None:
        self.rank = rank
        self.size = size
        self.part = rank, size
        self.identity = identity

    def gather(self, value: Any, name: str) -> list[Any]:
        """Return all ranks' values, in order; collective.

        Args:
            value: This rank's value, which can be pickled.
            name: Name of the exchange, for errors.
        """
        return [value]


class _SilentWorld(DataWorld):
    """Ranks that say nothing to each other."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.part = 0, 1


class _BluecommWorld(DataWorld):
    def gather(self, value: Any, name: str) -> list[Any]:
        return allgather_object(value, f"data.{name}", process_set=current_group())


class _TorchWorld(DataWorld):
    def gather(self, value: Any, name: str) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def data_world(rank: int | None = None, size: int | None = None) -> DataWorld:
    """Return the world that this rank shares data with.

    A newcomer of a job does not communicate with the others before it has joined.

    Args:
        rank: Number of this rank, if the program numbers the ranks itself. These
            compare nothing with each other.
        size: Their number, given together with ``rank``.

    Raises:
        ValueError: Only one of the two is given, or ``rank`` is not below ``size``.
    """
    if rank is not None and size is not None:
        if not 0 <= rank < size:
            raise ValueError(
                f"expected a rank from 0 to num_replicas - 1, got rank={rank} and "
                f"num_replicas={size}"
            )
        return _SilentWorld(rank, size)
    if rank is not None or size is not None:
        raise ValueError(
            f"got rank={rank} and num_replicas={size}; pass both of them or none"
        )
    if is_initialized():
        everybody = current_communicator()
        if everybody.is_joining:
            # The others, which may be anywhere in the program, have agreed before.
            return _SilentWorld(everybody.rank, everybody.size)
        members = current_group()
        return _BluecommWorld(members.rank, members.size, members)
    if dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
        return _TorchWorld(dist.get_rank(), dist.get_world_size(), group)
    return DataWorld(0, 1)


def check_same(world: DataWorld, user: str, facts: Mapping[str, Any]) -> None:
    """Check that all ranks have the same facts; collective.

    Args:
        world: The ranks.
        user: Name of the caller, for errors.
        facts: Name to value.

    Raises:
        ValueError: They differ between ranks, on all ranks alike.
    """
    everyone = world.gather(dict(facts), user)
    for name in facts:
        values = [theirs.get(name) for theirs in everyone]
        if all(value == values[0] for value in values):
            continue
        found = "; ".join(
            f"{value!r} on {format_ranks(ranks, noun=True)}"
            for value, ranks in _ranks_by_value(values)
        )
        raise ValueError(
            f"{user}: the ranks have different values of {name}: {found}; give all "
            "ranks the same dataset and the same options"
        )


def on_all_ranks(
    world: DataWorld, user: str, call: Callable[[], _Value]
) -> list[_Value]:
    """Return what a function returns on each rank; collective.

    Args:
        world: The ranks.
        user: Name of the caller, for errors.
        call: The function; its value can be pickled.

    Raises:
        RuntimeError: It has raised on a rank. The text says on which, and with which
            error; all ranks raise.
    """
    error: Exception | None = None
    mine: tuple[str, Any]
    try:
        mine = "", call()
    except Exception as raised:
        error = raised
        mine = f"{type(raised).__name__}: {raised}", None
    everyone = world.gather(mine, user)
    failed = [rank for rank, (text, _) in enumerate(everyone) if text]
    if failed:
        raise RuntimeError(
            f"{user} failed on {format_ranks(failed, noun=True)}, first with "
            f"{everyone[failed[0]][0]}"
        ) from error
    return [value for _, value in everyone]


def _ranks_by_value(values: list[Any]) -> list[tuple[Any, list[int]]]:
    """Return each different value with the ranks that have it."""
    found: list[tuple[Any, list[int]]] = []
    for rank, value in enumerate(values):
        for known, ranks in found:
            if known == value:
                ranks.append(rank)
                break
        else:
            found.append((value, [rank]))
    return found
