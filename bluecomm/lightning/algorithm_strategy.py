"""The part that the strategies for the Trainer and for Fabric share."""

from __future__ import annotations

from typing import Any, ClassVar

from bluecomm.lightning.launched_ranks import LaunchedRanks, ranks_of
from bluecomm.lightning.wrapping import Wrapping
from bluecomm.optim.algorithm import Algorithm


class AlgorithmStrategy(LaunchedRanks):
    """A strategy that trains with an algorithm of ``DistributedOptimizer``.

    A strategy has it before Lightning's ``DDPStrategy`` among its bases.

    Args:
        algorithm: Name or class of the algorithm.
        cluster_environment: A ``BluecommEnvironment``. Default: a new one.
        process_group_backend: Backend of torch's process group.
        **options: Options of ``DistributedOptimizer``, and arguments of Lightning's
            strategy, whose names are in ``of_lightning``.

    Raises:
        ValueError: The algorithm is unknown.
        TypeError: ``cluster_environment`` is one of Lightning.
    """

    strategy_name = "bluecomm"
    of_lightning: ClassVar[frozenset[str]] = frozenset(
        {"accelerator", "parallel_devices", "checkpoint_io", "timeout"}
    )

    def __init__(
        self,
        algorithm: str | type[Algorithm] = "neighbor_allreduce",
        *,
        cluster_environment: Any = None,
        process_group_backend: str = "bluecomm",
        **options: Any,
    ) -> None:
        of_lightning = {
            name: options.pop(name) for name in self.of_lightning & options.keys()
        }
        super().__init__(  # type: ignore[call-arg]
            cluster_environment=ranks_of(cluster_environment),
            process_group_backend=process_group_backend,
            **of_lightning,
        )
        self._wrapping = Wrapping(algorithm, options)
