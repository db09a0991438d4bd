"""The arguments of the loader: which exclude each other, and what batches they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bluecomm.data.batch_source import BatchSource
from bluecomm.data.distributed_batch_sampler import DistributedBatchSampler
from bluecomm.data.dynamic.lease_batches import LeaseBatches
from bluecomm.data.load_balancing import LoadBalancingSampler
from bluecomm.data.stateful_batch_sampler import StatefulBatchSampler
from bluecomm.data.static_batches import StaticBatches

_LEASE_S = 30.0
# The arguments that each partition does not have.
_OTHERS_ONLY = {
    "static": {"uneven", "lease_s"},
    "dynamic": {"drop_last", "pad"},
}


def make_source(
    dataset: Any,
    partition: str,
    batch_sampler: StatefulBatchSampler | None,
    seed: int,
    chosen: Mapping[str, Any],
) -> BatchSource:
    """Return the batches of a partition; collective."""
    options = {"batch_size": 1, **chosen}
    if partition == "dynamic":
        options = {"shuffle": True, "uneven": False, "lease_s": _LEASE_S, **options}
        return LeaseBatches(dataset, seed=seed, **options)
    if batch_sampler is None:
        batch_sampler = DistributedBatchSampler(dataset, seed=seed, **options)
    return StaticBatches(batch_sampler)


def check_arguments(
    partition: str,
    batch_sampler: StatefulBatchSampler | None,
    chosen: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Raise an error if arguments exclude each other."""
    for name in ("sampler", "generator"):
        if name in options:
            raise TypeError(
                f"DataLoader: {name} cannot be passed; pass a batch_sampler of "
                "bluecomm.data and a seed"
            )
    if options.get("in_order") is False:
        raise TypeError(
            "DataLoader: in_order=False is not possible, because a state counts the "
            "batches in their order"
        )
    _check_partition(partition, batch_sampler, chosen)
    if batch_sampler is None:
        return
    is_single = isinstance(batch_sampler, LoadBalancingSampler)
    if is_single or not isinstance(batch_sampler, StatefulBatchSampler):
        raise TypeError(
            "DataLoader: expected a batch_sampler of bluecomm.data, got "
            f"{type(batch_sampler).__name__}; use torch's DataLoader with this one"
        )
    if chosen:
        raise TypeError(
            f"DataLoader: {', '.join(sorted(chosen))} cannot be passed with a "
            "batch_sampler; pass them to the sampler"
        )


def _check_partition(
    partition: str,
    batch_sampler: StatefulBatchSampler | None,
    chosen: Mapping[str, Any],
) -> None:
    """Raise an error if arguments do not fit the partition."""
    if partition not in _OTHERS_ONLY:
        raise ValueError(
            f"DataLoader: expected the partition to be one of {[*_OTHERS_ONLY]}, got "
            f"{partition!r}"
        )
    unfit = sorted(_OTHERS_ONLY[partition] & {*chosen})
    if partition == "dynamic" and batch_sampler is not None:
        unfit.append("batch_sampler")
    if unfit:
        raise TypeError(
            f"DataLoader: {', '.join(unfit)} cannot be passed with "
            f'partition="{partition}"'
        )
