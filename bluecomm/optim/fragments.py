"""Fragments: parts of a model that rounds send in turn."""

from __future__ import annotations

from collections.abc import Mapping

from bfrun.wording import count
from bluecomm.optim.parameter_names import NamedParameters
from bluecomm.topology.graph import check_integer


def check_streaming(fragments: int, overlap: int, mixing: float) -> None:
    """Raise unless the options of streaming fragments are in their ranges.

    Raises:
        TypeError: A number of fragments or of steps is not an integer.
        ValueError: A value is out of its range.
    """
    for name, value, least in (("fragments", fragments, 1), ("overlap", overlap, 0)):
        check_integer(value, name, minimum=least)
    if not 0 <= mixing < 1:
        raise ValueError(f"mixing must be at least 0 and less than 1, got {mixing}")


def divide(named: NamedParameters, fragments: int) -> Mapping[int, int]:
    """Return the fragment of each parameter, by ``id``.

    A fragment has consecutive parameters. It ends as soon as it has its share of the
    bytes that are left, so fragments are about equal in size, unless a parameter
    exceeds that share.

    Args:
        named: Names and parameters, in the order of use, the same on all ranks.
        fragments: Number of fragments.

    Raises:
        ValueError: There are fewer parameters than fragments.
    """
    if len(named) < fragments:
        raise ValueError(
            f"DistributedOptimizer: fragments={fragments} needs as many parameters, "
            f"and the optimizer has {count(len(named), 'parameter')}; use fewer "
            "fragments"
        )
    sizes = [parameter.numel() * parameter.element_size() for _, parameter in named]
    fragment_of: dict[int, int] = {}
    fragment, filled, left = 0, 0, sum(sizes)
    for position, (_, parameter) in enumerate(named):
        fragment_of[id(parameter)] = fragment
        filled += sizes[position]
        others = fragments - fragment - 1
        is_full = filled * (others + 1) >= left
        if others and (is_full or len(named) - position - 1 == others):
            fragment, left, filled = fragment + 1, left - filled, 0
    return fragment_of
