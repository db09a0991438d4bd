"""Checks that the ranks' buckets agree before they are exchanged."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Sequence

from bluecomm.compression import Codec
from bluecomm.optim.agreement import check_agreement, kind_of
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.options import CommonOptions
from bluecomm.runtime import Communicator
from bluecomm.topology import TopologySchedule

# Attributes in which wrappers keep the model. One rank may use a wrapper that another
# does not.
_WRAPPERS = ("_orig_mod", "module")


def check_buckets(
    comm: Communicator,
    name: str,
    options: dict[str, str],
    buckets: Sequence[Bucket],
    sparse_parameters: Collection[int] = (),
    caller: str = "DistributedOptimizer",
) -> None:
    """Compare a new optimizer with those of the other ranks.

    The names of parameters may differ, for example when one rank compiles its model.
    Devices may differ, too, as long as they divide the model alike.

    Args:
        comm: Ranks that take part.
        name: Prefix of the names of its operations, equal on all ranks.
        options: Algorithm and options, in words.
        buckets: Its buckets.
        sparse_parameters: The ``id`` of each parameter with sparse gradients.
        caller: Name of the function that the user has called.

    Raises:
        MismatchError: The ranks differ; the text names options or parameters.
    """
    facts = dict(options)
    compared = [f"{key}={value}" for key, value in options.items()]
    devices = list(dict.fromkeys(bucket.staging for bucket in buckets))
    for number, bucket in enumerate(buckets):
        where = ""
        if len(devices) > 1:
            where = f" on device {devices.index(bucket.staging) + 1} of its model"
        for slot in bucket.slots:
            kind = kind_of(slot.parameter)
            if id(slot.parameter) in sparse_parameters:
                kind += " with sparse gradients"
            facts[f"parameter {_plain(slot.name)!r}"] = kind + where
            compared.append(
                f"a parameter that is {kind}, with strides {slot.stride}, at element "
                f"{slot.offset} of bucket {number}"
            )
    check_agreement(
        comm,
        caller,
        facts,
        "All ranks must wrap the same model with the same options, and make their "
        "optimizers in the same order",
        name=name,
        compared=compared,
    )


def options_in_words(algorithm: Algorithm, options: CommonOptions) -> dict[str, str]:
    """Return the options that must be equal on all ranks."""
    given = sorted(algorithm.given_options.items())
    return {
        "algorithm": type(algorithm).__name__,
        **{field: str(value) for field, value in vars(options).items()},
        **{
            option: repr(value)
            for option, value in given
            if isinstance(value, (str, numbers.Real, TopologySchedule, Codec))
        },
    }


def _plain(name: str) -> str:
    """Return a parameter's name without the names of wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
