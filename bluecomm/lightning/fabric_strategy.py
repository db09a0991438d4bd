"""The strategy for Lightning's ``Fabric``."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from torch import nn

from bluecomm.lightning.algorithm_strategy import AlgorithmStrategy
from bluecomm.lightning.rank_files import load_own, save_own
from bluecomm.lightning.root_module import RootModule, roots_of, unwrapped
from bluecomm.lightning.wrapping import no_sync
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.model_average import averaged_state_dict
from bluecomm.optim.parameter_names import parameters_of
from bluecomm.optim.parameters import broadcast_parameters
from bluecomm.optim.rank_files import digests_of, without_rank_state


class BluecommFabricStrategy(AlgorithmStrategy, DDPStrategy):
    """Trains with any algorithm of ``DistributedOptimizer`` in Lightning's ``Fabric``.

    ``fabric.setup`` gives all ranks the model of rank 0, and makes each optimizer a
    ``DistributedOptimizer``. ``bluecomm.averaged`` evaluates the average of the ranks'
    models, and ``fabric.save`` saves it; beside a checkpoint that has an optimizer,
    each rank writes a file from which as many ranks continue exactly.

    Args:
        algorithm: Name or class of the algorithm.
        **options: Options of ``DistributedOptimizer``, or arguments of Lightning's
            former ``BaguaStrategy``. Also, as in Lightning, ``accelerator``,
            ``parallel_devices``, ``cluster_environment`` (a ``BluecommEnvironment``),
            ``checkpoint_io``, ``precision``, ``process_group_backend`` (default:
            "bluecomm") and ``timeout`` (default: ``BLUECOMM_OPERATION_TIMEOUT_S``).

    Raises:
        ValueError: The algorithm is unknown.
        TypeError: ``cluster_environment`` is one of Lightning.
    """

    of_lightning = AlgorithmStrategy.of_lightning | {"precision"}

    def __init__(
        self,
        algorithm: str | type[Algorithm] = "neighbor_allreduce",
        **options: Any,
    ) -> None:
        super().__init__(algorithm, **options)
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

    def save_checkpoint(
        self,
        path: Any,
        state: dict[str, Any],
        storage_options: Any = None,
        filter: Any = None,
    ) -> None:
        """Write the checkpoint on rank 0, and a file of its own on each rank."""
        parts = self._parts_of_ranks(state)
        if parts and not filter:
            state = self._convert_stateful_objects_in_state(state, {})
        super().save_checkpoint(path, state, storage_options, filter)
        if parts and not filter:
            own = {name: part.state_dict() for name, part in parts.items()}
            save_own(self.checkpoint_io, path, _digests(state, parts), own)

    def load_checkpoint(
        self,
        path: Any,
        state: Any = None,
        strict: bool = True,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint and, to continue training, this rank's file. Collective."""
        remainder: dict[str, Any] = super().load_checkpoint(
            path, state, strict, weights_only
        )
        parts = self._parts_of_ranks(state)
        if parts:
            loaded = {name: part.state_dict() for name, part in parts.items()}
            digests = _digests(loaded, parts)
            own = load_own(self.checkpoint_io, path, digests, weights_only) or {}
            for name, part in parts.items():
                if name in own:
                    part.load_state_dict(own[name])
        return remainder

    def _parts_of_ranks(self, state: Any) -> dict[str, Any]:
        """Return the modules and optimizers of a training, if ranks differ in them."""
        parts = {
            name: unwrapped(part) if isinstance(part, nn.Module) else part
            for name, part in (state.items() if isinstance(state, dict) else ())
            if isinstance(part, nn.Module | torch.optim.Optimizer)
        }
        is_training = any(part in self._optimizers for part in parts.values())
        return parts if is_training and not self._wrapping.keeps_equal else {}


def _digests(states: dict[str, Any], parts: dict[str, Any]) -> dict[str, str]:
    """Return the digests of the states of those parts that are modules."""
    modules = [name for name, part in parts.items() if isinstance(part, nn.Module)]
    return digests_of({name: states[name] for name in modules})


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
