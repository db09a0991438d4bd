"""The algorithms by name, as ``DistributedOptimizer(algorithm=...)`` accepts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bfrun.wording import did_you_mean
from bluecomm.optim.algorithm import Algorithm

_algorithms: dict[str, type[Algorithm]] = {}

_Class = TypeVar("_Class", bound=type[Algorithm])


def register_algorithm(name: str) -> Callable[[_Class], _Class]:
    """Return a class decorator that registers an algorithm under a name.

    Args:
        name: Name for ``DistributedOptimizer(algorithm=...)``.

    Raises:
        TypeError: The class is not a subclass of ``Algorithm``; raised by the
            decorator.
        ValueError: The name is taken by another class; raised by the decorator.
    """

    def register(algorithm: _Class) -> _Class:
        if not isinstance(algorithm, type) or not issubclass(algorithm, Algorithm):
            raise TypeError(f"{algorithm!r} is not a subclass of bluecomm's Algorithm")
        if _algorithms.setdefault(name, algorithm) is not algorithm:
            raise ValueError(
                f"the algorithm name {name!r} is taken by "
                f"{_algorithms[name].__name__}; choose another name"
            )
        return algorithm

    return register


def get_algorithm(name: object) -> type[Algorithm]:
    """Return the class of an algorithm, given by its name or itself.

    Raises:
        TypeError: ``name`` is neither.
        ValueError: The name is unknown.
    """
    if isinstance(name, type) and issubclass(name, Algorithm):
        return name
    if not isinstance(name, str):
        raise TypeError(
            f"algorithm must be a name or a subclass of Algorithm, got {name!r}"
        )
    if name not in _algorithms:
        raise ValueError(
            f"unknown algorithm {name!r}; known are {', '.join(algorithm_names())}"
            f"{did_you_mean(name, _algorithms)}"
        )
    return _algorithms[name]


def algorithm_names() -> list[str]:
    """Return the names of all algorithms, sorted."""
    return sorted(_algorithms)


def name_of(algorithm: type[Algorithm]) -> str:
    """Return the name of an algorithm's class; that of the class if it has none."""
    names = (name for name, known in _algorithms.items() if known is algorithm)
    return next(names, algorithm.__name__)


def names_that_survive_losses() -> list[str]:
    """Return the names of the algorithms that go on without lost ranks, sorted."""
    return sorted(name for name, known in _algorithms.items() if known.survives_losses)


def works_in_backward(algorithm: type[Algorithm]) -> bool:
    """Return whether an algorithm says itself that it needs no optimizer."""
    return bool(vars(algorithm).get("works_in_backward", False))


def names_that_work_in_backward() -> list[str]:
    """Return the names of the algorithms that need no optimizer, sorted."""
    return sorted(
        name for name, known in _algorithms.items() if works_in_backward(known)
    )


def works_on_devices(algorithm: Algorithm) -> bool:
    """Return whether parameters may be on a device; its class says so itself."""
    is_known = bool(vars(type(algorithm)).get("works_on_devices", False))
    return is_known and algorithm.works_on_devices


def names_on_devices() -> list[str]:
    """Return the names of the algorithms for parameters on a device, sorted."""
    return sorted(
        name
        for name, known in _algorithms.items()
        if vars(known).get("works_on_devices", False)
    )


def names_that_train_apart() -> list[str]:
    """Return the names of the algorithms for ``bfrun --partition both``, sorted."""
    return sorted(name for name, known in _algorithms.items() if known.trains_apart)
