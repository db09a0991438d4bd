"""Costs of all samples, computed once by all ranks together."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bluecomm.data.balance import Costs
from bluecomm.data.world import DataWorld, on_all_ranks

_log = logging.getLogger("bluecomm")

# Returns the cost of a sample, or all costs in the order of the samples.
Cost = Callable[[Any], float] | Sequence[float]


def find_costs(
    dataset: Any,
    cost: Cost,
    *,
    world: DataWorld,
    user: str,
    facts: Mapping[str, Any],
    file: str | os.PathLike[str] | None,
) -> Costs:
    """Return the cost of each sample, the same array on all ranks; collective.

    Each rank computes its share. With ``file``, rank 0 reads the costs from there if
    they belong to this dataset, or writes them there.

    Args:
        dataset: The dataset.
        cost: Function of a sample, or all costs.
        world: The ranks.
        user: Name of the caller, for errors.
        facts: Facts that identify the dataset.
        file: The file.

    Raises:
        RuntimeError: The function has raised on a rank, or a cost is negative or not
            finite; all ranks raise.
        ValueError: There are more or fewer costs than samples.
    """
    length = len(dataset)
    if not callable(cost):
        costs = np.asarray(cost, dtype=np.float64)
        if costs.shape != (length,):
            raise ValueError(
                f"{user}: expected {length} costs, one for each sample, got the shape "
                f"{costs.shape}"
            )
        on_all_ranks(world, f"{user}: cost", lambda: _check(costs, 0))
        return costs
    path = None if file is None else Path(file)
    is_first = world.part[0] == 0
    read = _read(path, facts) if is_first and path is not None else None
    if (shared := world.gather(read, f"{user}.cost_file")[0]) is not None:
        return np.asarray(shared, dtype=np.float64)
    number, count = world.part
    begin, end = number * length // count, (number + 1) * length // count

    def compute() -> Costs:
        return _compute(dataset, cost, begin, end)

    costs = np.concatenate(on_all_ranks(world, f"{user}: cost", compute))
    if is_first and path is not None:
        _write(path, facts, costs)
    return costs


def digest(costs: Costs) -> str:
    """Return a short text that tells costs apart."""
    return hashlib.sha256(costs.tobytes()).hexdigest()[:16]


def _compute(dataset: Any, cost: Callable[[Any], float], begin: int, end: int) -> Costs:
    costs = np.empty(end - begin)
    for index in range(begin, end):
        try:
            costs[index - begin] = float(cost(dataset[index]))
        except Exception as error:
            raise RuntimeError(
                f"sample {index}: {type(error).__name__}: {error}"
            ) from error
    return _check(costs, begin)


def _check(costs: Costs, begin: int) -> Costs:
    wrong = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if wrong.size:
        raise ValueError(
            f"sample {begin + int(wrong[0])} has the cost {float(costs[wrong[0]])}; "
            "costs must be finite and at least 0"
        )
    return costs


def _read(path: Path, facts: Mapping[str, Any]) -> Costs | None:
    """Return the costs in a file, if they belong to the dataset."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            if json.loads(str(saved["facts"])) == json.loads(json.dumps(facts)):
                return _check(np.array(saved["costs"], dtype=np.float64), 0)
            _log.info("data: the costs in %s belong to other data; replacing", path)
    except FileNotFoundError:
        pass
    except Exception as error:
        _log.warning("data: cannot read costs from %s (%s); computing", path, error)
    return None


def _write(path: Path, facts: Mapping[str, Any], costs: Costs) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            np.savez(stream, costs=costs, facts=np.array(json.dumps(facts)))
        partial.replace(path)
    # A fingerprint that JSON cannot hold is a TypeError. The other ranks go on.
    except (OSError, TypeError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        _log.warning("data: cannot write costs to %s (%s)", path, error)
