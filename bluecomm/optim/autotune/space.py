"""The settings that may be tried, and how ranks tell each other which one is next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

# A setting: the value of each option, by its name.
Setting = Mapping[str, int | str]

BUCKET_BYTES = "bucket_bytes"
ALLREDUCE_ALGORITHM = "allreduce_algorithm"

# Smaller buckets would cost more in messages than any overlap saves, and nothing is
# left to overlap with if a bucket is larger than this.
_LEAST_BUCKET, _LARGEST_BUCKET = 128 << 10, 128 << 20


@dataclasses.dataclass(frozen=True)
class Space:
    """The values of each option. All ranks have the same space.

    Attributes:
        choices: The values of each option, ascending if they have an order.
        default: The setting without autotuning, whose values are among the choices.
    """

    choices: Mapping[str, Sequence[int | str]]
    default: Setting

    @property
    def size(self) -> int:
        """Number of settings."""
        return math.prod(len(values) for values in self.choices.values())

    def positions_of(self, setting: Setting) -> list[int]:
        """Return the position of each option's value among its choices."""
        return [
            values.index(setting[option]) for option, values in self.choices.items()
        ]

    def at(self, positions: Sequence[int]) -> Setting:
        """Return the setting with the given positions."""
        return {
            option: values[position]
            for (option, values), position in zip(
                self.choices.items(), positions, strict=True
            )
        }

    def has(self, setting: object) -> TypeGuard[Setting]:
        """Return whether ``setting``, which a file may hold, is one of the space."""
        return (
            isinstance(setting, Mapping)
            and setting.keys() == self.choices.keys()
            and all(
                setting[option] in values for option, values in self.choices.items()
            )
        )


def bucket_sizes(total_nbytes: int, default: int) -> list[int]:
    """Return the limits of buckets to choose from: powers of two, and the default.

    Args:
        total_nbytes: Bytes of all parameters. Limits above it all stand for a single
            bucket, so there is at most one.
        default: The limit without autotuning.
    """
    sizes = {default}
    size = _LEAST_BUCKET
    while size <= _LARGEST_BUCKET and min(size, max(sizes)) < total_nbytes:
        sizes.add(size)
        size *= 2
    return sorted(sizes)


def allreduce_algorithms(ranks: int, machines: int) -> list[int | str]:
    """Return the engine's algorithms to choose from; the first one is the default.

    Within a machine the default reads memory in place, which no other algorithm does
    for less, so there is no choice.

    Args:
        ranks: Number of ranks.
        machines: Number of machines that they are on.
    """
    found: list[int | str] = ["auto"]
    if machines > 1 and ranks > 2:
        found += ["direct", "ring"]
        if ranks > machines:
            found.append("hierarchical")
    return found


def in_words(setting: Setting) -> str:
    """Return a setting for texts, such as ``bucket_bytes=1048576``."""
    return ", ".join(f"{option}={value}" for option, value in setting.items())
