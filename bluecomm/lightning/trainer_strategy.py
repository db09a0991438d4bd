"""The strategy for Lightning's ``Trainer``."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from bluecomm.lightning.algorithm_strategy import AlgorithmStrategy
from bluecomm.lightning.rank_files import load_own, save_own
from bluecomm.lightning.root_module import RootModule
from bluecomm.lightning.wrapping import no_sync
from bluecomm.nn.sync_batch_norm import SyncBatchNorm
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.model_average import averaged, averaged_state_dict
from bluecomm.optim.parameters import broadcast_parameters
from bluecomm.optim.rank_files import digests_of, path_of_rank, without_rank_state


class BluecommStrategy(AlgorithmStrategy, DDPStrategy):
    """Trains with any algorithm of ``DistributedOptimizer`` in Lightning's ``Trainer``.

    Every optimizer of ``configure_optimizers`` becomes a ``DistributedOptimizer``. The
    ranks start with the model of rank 0. They validate, test and save the average of
    their models; while they train, and when ``fit`` has returned, each has its own
    (``bluecomm.average_model`` makes them equal). Beside a checkpoint with the average,
    each rank writes a file from which as many ranks continue exactly. Other
    communication, such as that of ``self.log(..., sync_dist=True)``, uses the same
    links through torch's process group "bluecomm".

    Args:
        algorithm: Name or class of the algorithm.
        **options: Options of ``DistributedOptimizer``, or arguments of Lightning's
            former ``BaguaStrategy``. Also, as in Lightning, ``accelerator``,
            ``parallel_devices``, ``cluster_environment`` (a ``BluecommEnvironment``),
            ``checkpoint_io``, ``precision_plugin``, ``process_group_backend`` (default:
            "bluecomm") and ``timeout`` (default: ``BLUECOMM_OPERATION_TIMEOUT_S``).

    Raises:
        ValueError: The algorithm is unknown.
        TypeError: ``cluster_environment`` is one of Lightning.
    """

    of_lightning = AlgorithmStrategy.of_lightning | {"precision_plugin"}

    # None outside of the Trainer's calls.
    lightning_module: Any
    model: Any
    optimizers: list[Any]

    def __init__(
        self,
        algorithm: str | type[Algorithm] = "neighbor_allreduce",
        **options: Any,
    ) -> None:
        super().__init__(algorithm, **options)
        self._trained: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._average = contextlib.ExitStack()
        self._is_averaged = False

    # -- setup -------------------------------------------------------------------------

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """True: a checkpoint replaces the values that all ranks start with."""
        return True

    def setup(self, trainer: Any) -> None:
        """Prepare the model and, to fit it, the optimizers."""
        if trainer.state.fn == TrainerFn.FITTING and self._layer_sync:
            # torch's own refuses CPUs.
            self.model = SyncBatchNorm.convert_sync_batchnorm(self.model)
        # DDP's own would make all models that of rank 0 before they are evaluated.
        super(ParallelStrategy, self).setup(trainer)

    def _setup_model(self, model: nn.Module) -> nn.Module:  # type: ignore[override]
        if model not in self._trained:
            broadcast_parameters(model, root_rank=0)
        if self.lightning_module.trainer.state.fn != TrainerFn.FITTING:
            return model
        self._trained.add(model)
        return RootModule(model)

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizers of the user, and distributed ones of them."""
        super().setup_optimizers(trainer)
        wrap = self._wrapping.wrap
        self.optimizers = [wrap(one, [self.model]) for one in self.optimizers]

    def teardown(self) -> None:
        """Leave the model as the user's."""
        self._average.close()
        self.model = self.lightning_module
        super().teardown()

    # -- training ----------------------------------------------------------------------

    def optimizer_step(
        self,
        optimizer: Any,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run the training step, and then the optimizer's.

        Lightning's closure contains the forward and the backward pass. They run before
        the step, so that they overlap with communication, as in a plain loop.
        """
        if not isinstance(optimizer, torch.optim.LBFGS):
            closure = _evaluated(closure)
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        if not self.lightning_module.automatic_optimization:
            # A training step may contain several forward passes.
            optimizer.synchronize()
        return result

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Let backward passes accumulate gradients without communication."""
        with no_sync(self.optimizers):
            yield

    def on_train_end(self) -> None:
        """Finish the communication under way."""
        for optimizer in self.optimizers:
            optimizer.synchronize()

    # -- evaluation --------------------------------------------------------------------

    def on_validation_start(self) -> None:
        """Give all ranks the average of their models."""
        if not self._wrapping.keeps_equal:
            self._average.enter_context(
                averaged(self.lightning_module, average_buffers=True)
            )
            self._is_averaged = True

    def on_validation_end(self) -> None:
        """Give this rank its own model back."""
        self._average.close()
        self._is_averaged = False

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the state of the averaged model, for a checkpoint. Collective."""
        if self._wrapping.keeps_equal:
            own: dict[str, Any] = super().lightning_module_state_dict()
            return own
        return averaged_state_dict(self.lightning_module, average_buffers=True)

    # -- checkpoints -------------------------------------------------------------------

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write the checkpoint on rank 0, and a file of its own on each rank."""
        states = checkpoint.get("optimizer_states")
        if states is None or self._wrapping.keeps_equal:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        plain = [without_rank_state(state) for state in states]
        common = {**checkpoint, "optimizer_states": plain}
        super().save_checkpoint(common, filepath, storage_options)
        own = {"state_dict": self._own_state(), "optimizer_states": states}
        save_own(self.checkpoint_io, filepath, _digests(checkpoint), own)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint and, to continue training, this rank's file. Collective."""
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        is_fitting = self.lightning_module.trainer.state.fn == TrainerFn.FITTING
        if self._wrapping.keeps_equal or not is_fitting:
            return checkpoint
        own = load_own(
            self.checkpoint_io, checkpoint_path, _digests(checkpoint), weights_only
        )
        return {**checkpoint, **(own or {})}

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a checkpoint, and this rank's file beside it."""
        super().remove_checkpoint(filepath)
        if not self._wrapping.keeps_equal:
            self.checkpoint_io.remove_checkpoint(path_of_rank(filepath))

    def _own_state(self) -> dict[str, Any]:
        """Return the state of this rank's model, also within an evaluation."""
        is_averaged, self._is_averaged = self._is_averaged, False
        self._average.close()
        state: dict[str, Any] = self.lightning_module.state_dict()
        if is_averaged:
            self.on_validation_start()
        return state


def _digests(checkpoint: dict[str, Any]) -> dict[str, str]:
    return digests_of({"state_dict": checkpoint["state_dict"]})


def _evaluated(closure: Callable[[], Any]) -> Callable[[], Any]:
    """Call a closure now, and return one that has its result when first called."""
    results = [closure()]

    def evaluate() -> Any:
        return results.pop() if results else closure()

    return evaluate
