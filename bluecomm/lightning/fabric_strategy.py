"""The strategy for Lightning's ``Fabric``."""

from __future__ import annotations

import contextlib
import datetime
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from torch import nn
from torch.distributed.constants import default_pg_timeout

from bluecomm.lightning.launched_ranks import LaunchedRanks, ranks_of
from bluecomm.lightning.rank_files import without_rank_state
from bluecomm.lightning.root_module import RootModule, roots_of, unwrapped
from bluecomm.lightning.wrapping import Wrapping, no_sync
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.model_average import averaged_state_dict
from bluecomm.optim.parameter_names import parameters_of
from bluecomm.optim.parameters import broadcast_parameters


class BluecommFabricStrategy(LaunchedRanks, DDPStrategy):
    """Trains with any algorithm of ``DistributedOptimizer`` in Lightning's ``Fabric``.

    ``fabric.setup`` gives all ranks the model of rank 0, and makes each optimizer a
    ``DistributedOptimizer``. ``fabric.save`` saves the average of the ranks' models;
    ``bluecomm.averaged`` evaluates it.

    Args:
        algorithm: Name or class of the algorithm.
        accelerator: As in Lightning.
        parallel_devices: As in Lightning.
        cluster_environment: A ``BluecommEnvironment``. Default: a new one.
        checkpoint_io: As in Lightning.
        precision: As in Lightning.
        process_group_backend: Backend of torch's process group.
        timeout: Timeout of torch's process group. Default: the setting
            ``BLUECOMM_OPERATION_TIMEOUT_S``.
        **options: Options of ``DistributedOptimizer``, or arguments of Lightning's
            former ``BaguaStrategy``.

    Raises:
        ValueError: The algorithm is unknown.
        TypeError: ``cluster_environment`` is one of Lightning.
    """

    strategy_name = "bluecomm"

    def __init__(
        self,
        algorithm: str | type[Algorithm] = "neighbor_allreduce",
        *,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision: Any = None,
        process_group_backend: str = "bluecomm",
        timeout: datetime.timedelta | None = default_pg_timeout,
        **options: Any,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=ranks_of(cluster_environment),
            checkpoint_io=checkpoint_io,
            precision=precision,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        self._wrapping = Wrapping(algorithm, options)
        self._roots: weakref.WeakSet[RootModule] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._backward_sync_control = _Accumulation(self._optimizers)

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """Give all ranks the module of rank 0. Collective."""
        broadcast_parameters(module, root_rank=0)
        root = RootModule(module)
        self._roots.add(root)
        return root

    def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        """Return a distributed optimizer for the modules set up so far. Collective."""
        new = self._wrapping.wrap(optimizer, self._roots)
        self._optimizers.add(new)
        return new

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Return the state of the averaged module. Collective."""
        module = unwrapped(module)
        if self._wrapping.keeps_equal:
            own: dict[str, Any] = super().get_module_state_dict(module)
            return own
        return averaged_state_dict(module, average_buffers=True)

    def get_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the optimizer's state, for all ranks."""
        state: dict[str, Any] = super().get_optimizer_state(optimizer)
        return state if self._wrapping.keeps_equal else without_rank_state(state)

    def load_module_state_dict(
        self, module: nn.Module, state_dict: dict[str, Any], strict: bool = True
    ) -> None:
        """Load a state into the user's module."""
        super().load_module_state_dict(unwrapped(module), state_dict, strict)


class _Accumulation(_BackwardSyncControl):
    """Implements ``fabric.no_backward_sync``."""

    def __init__(self, optimizers: weakref.WeakSet[Any]) -> None:
        self._optimizers = optimizers

    @contextlib.contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Iterator[None]:
        """Let backward passes accumulate a module's gradients."""
        optimizers = self._optimizers if enabled else ()
        with no_sync([one for one in optimizers if _trains(one, module)]):
            yield


def _trains(optimizer: Any, module: nn.Module) -> bool:
    return bool(roots_of([module], parameters_of(optimizer)))
