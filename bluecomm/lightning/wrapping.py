"""Makes the optimizers of a strategy, and joins their ``no_sync`` blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from bluecomm.lightning.bagua import read_arguments
from bluecomm.lightning.root_module import RootModule, roots_of
from bluecomm.optim import DistributedOptimizer
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.parameter_names import parameters_of
from bluecomm.optim.registry import get_algorithm


class Wrapping:
    """How a strategy wraps optimizers.

    Args:
        algorithm: Name or class of the algorithm, or a name of Bagua.
        options: Options of ``DistributedOptimizer``, or arguments of ``BaguaStrategy``.

    Raises:
        ValueError: The name is unknown, or bluecomm has no equivalent.

    Attributes:
        keeps_equal: Whether the ranks' parameters are always equal, because they take
            the same steps.
    """

    def __init__(
        self, algorithm: str | type[Algorithm], options: dict[str, Any]
    ) -> None:
        algorithm, options = read_arguments(algorithm, options)
        self.keeps_equal: bool = get_algorithm(algorithm).flat_gradients
        self._algorithm = algorithm
        self._options = options

    def wrap(
        self, optimizer: torch.optim.Optimizer, roots: Iterable[RootModule]
    ) -> Any:
        """Return a distributed optimizer for those of the roots that it trains."""
        return DistributedOptimizer(
            optimizer,
            roots_of(roots, parameters_of(optimizer)),
            algorithm=self._algorithm,
            **self._options,
        )


@contextlib.contextmanager
def no_sync(optimizers: Sequence[Any]) -> Iterator[None]:
    """Let backward passes accumulate gradients of several optimizers."""
    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(optimizer.no_sync())
        yield
