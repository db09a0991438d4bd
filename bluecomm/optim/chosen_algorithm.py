"""Makes the algorithm that a caller has chosen, with its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.options import CommonOptions


def check_honoured(caller: str, kind: type[Algorithm], options: CommonOptions) -> None:
    """Raise if an option is given that the algorithm does not use.

    Args:
        caller: Name of the function that the user has called.
        kind: The algorithm.
        options: Options that do not depend on it.

    Raises:
        ValueError: One has a value other than its default, and has no effect.
    """
    defaults = CommonOptions(bucket_bytes=options.bucket_bytes)
    for name in sorted(vars(options)):
        value = getattr(options, name)
        if value != getattr(defaults, name) and name not in kind.honours:
            raise ValueError(f"{caller}: {kind.__name__} does not use {name}={value!r}")


def make_algorithm(
    caller: str, kind: type[Algorithm], options: Mapping[str, Any]
) -> Algorithm:
    """Return a new algorithm.

    Args:
        caller: Name of the function that the user has called.
        kind: The algorithm.
        options: Its own options.

    Raises:
        TypeError: The options do not fit it.
    """
    try:
        algorithm = kind(**options)
    except TypeError as error:
        raise TypeError(
            f"{caller}: options {sorted(options)} do not fit {kind.__name__}: {error}"
        ) from error
    algorithm.given_options = options
    return algorithm
