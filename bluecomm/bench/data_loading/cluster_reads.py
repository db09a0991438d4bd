"""Times hits of the cluster cache, on this machine and on another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bluecomm.basics import machine_rank, machine_size, rank
from bluecomm.bench.data_loading.cache_reads import (
    WORD_NBYTES,
    ReadTimes,
    Tensors,
    budget_for,
    timed_turn,
)
from bluecomm.data.cached_dataset import CachedDataset
from bluecomm.data.stores.cluster.owners import owner_of
from bluecomm.ops.barrier import barrier


def time_cluster_reads(nbytes: int, samples: int, rounds: int) -> list[ReadTimes]:
    """Return the times of the first rank while the others wait; collective.

    Args:
        nbytes: Bytes of a sample.
        samples: Number of samples, each of this machine and of another one.
        rounds: Number of turns.

    Raises:
        RuntimeError: A reader read something else than was kept.
    """
    machines = machine_size()
    count = 16 * machines * samples
    keys: dict[str, list[int]] = {"cluster, own": [], "cluster, other": []}
    for key in range(count):
        is_own = owner_of(key, range(machines)) == machine_rank()
        keys["cluster, own" if is_own else "cluster, other"].append(key)
    dataset = Tensors(nbytes, count)
    budget = budget_for(nbytes, 2 * samples)
    cached = CachedDataset(dataset, "cluster", budget=budget)
    times = {name: ReadTimes(nbytes, name, []) for name in keys}
    # The first turn loads, and is not counted.
    for turn in range(rounds + 1) if rank() == 0 else ():
        for name, some in keys.items():
            chosen = some[:samples]
            seconds, total = timed_turn(_chosen(cached, chosen), samples)
            if total != sum(chosen) * (nbytes // WORD_NBYTES):
                raise RuntimeError(f"{name} read {total}, which was not kept")
            if turn > 0:
                times[name].seconds.extend(seconds)
    barrier()
    cached.close()
    return [one for one in times.values() if one.seconds]


def _chosen(dataset: CachedDataset, keys: list[int]) -> Callable[[int], Any]:
    """Return the function that reads one of some samples."""
    return lambda index: dataset[keys[index]]
