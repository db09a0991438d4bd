"""The base that distributed optimizers have in addition to the user's own class."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from bfrun.wording import did_you_mean
from bluecomm.ops.neighbor_weights import RENAMED
from bluecomm.ops.refusal import Operation
from bluecomm.ops.unfit_calls import refuse_unfit_calls
from bluecomm.optim.amp import is_scaled, step_with_scaler
from bluecomm.optim.coordinator import Coordinator
from bluecomm.optim.derived_class import copy_as_plain
from bluecomm.optim.options import StepSettings
from bluecomm.runtime import Communicator
from bluecomm.topology.rank_lists import list_ranks

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object

# Key in ``__dict__`` of a distributed optimizer under which its coordinator is. All
# other attributes are those of the wrapped optimizer.
COORDINATOR_KEY = "_bluecomm"
# Key of the coordinator's state in a state dict of the optimizer.
STATE_KEY = "bluecomm"

_STEP_SETTINGS = StepSettings.names()


def _coordinator(optimizer: Distributed) -> Coordinator:
    # Lightning's wrapper has this class as a base, and forwards attributes that it
    # lacks to the optimizer that it wraps.
    coordinator: Coordinator | None = getattr(optimizer, COORDINATOR_KEY, None)
    if coordinator is None:
        raise RuntimeError(
            f"this {type(optimizer).__name__} has the class of a DistributedOptimizer, "
            "but was not made by it; pass a plain optimizer to DistributedOptimizer"
        )
    return coordinator


def _communicator(arguments: Mapping[str, Any]) -> Communicator:
    return _coordinator(arguments["self"]).comm


def _refused_join(_: Communicator, arguments: Mapping[str, Any]) -> Iterator[Operation]:
    return _coordinator(arguments["self"]).refused_join()


class Distributed(_Base):
    """Adds communication to the class of the wrapped optimizer.

    The settings (``self_weight``, ``src_weights``, ``dst_weights``,
    ``src_machine_weights``, ``dst_machine_weights``, ``enable_topo_check``,
    ``communication_type``) are attributes. A value holds for all steps until it is set
    again.
    """

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # With averaged gradients all ranks skip the same steps. Otherwise a rank that
        # skips a step still has to take part in its round, so step must be called. With
        # local parameters it must be called to refuse the scaler.
        own = self.__dict__.get("_step_supports_amp_scaling", False)
        coordinator = _coordinator(self)
        averages = coordinator.algorithm.flat_gradients
        return own or not averages or coordinator.has_local_parameters

    def __getattr__(self, name: str) -> Any:
        if name in _STEP_SETTINGS:
            return getattr(_coordinator(self).settings, name)
        # The given optimizer may be a wrapper with a __getattr__ of its own.
        inherited = getattr(super(), "__getattr__", None)
        if inherited is not None:
            return inherited(name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _STEP_SETTINGS:
            _set_step_setting(_coordinator(self), name, value)
        elif name in RENAMED:
            raise AttributeError(
                f"a distributed optimizer has no {name!r}; set {RENAMED[name]!r}"
            )
        elif name not in self.__dict__ and (
            nearest := did_you_mean(name, _STEP_SETTINGS, cutoff=0.8)
        ):
            raise AttributeError(f"a distributed optimizer has no {name!r}{nearest}")
        else:
            super().__setattr__(name, value)

    # -- methods of every optimizer ----------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Run the given optimizer's step, and communicate as the algorithm requires.

        Args:
            closure: As in the given optimizer. With gradient allreduce, each evaluation
                communicates.
            **kwargs: Passed to the given optimizer's step.

        Returns:
            The result of the given optimizer's step.

        Raises:
            BluecommError: The communication failed.
            ValueError: A ``GradScaler`` calls it, and the algorithm averages gradients,
                but some parameters are local.
        """
        coordinator = _coordinator(self)
        if coordinator.has_local_parameters:
            _check_scaler(self, coordinator)
        coordinator.given.__dict__["_opt_called"] = True

        def update() -> Any:
            coordinator.algorithm.before_update()
            return super(Distributed, self).step(**kwargs)

        def run(evaluate: Callable[[], Any] | None) -> Any:
            if evaluate is not None:
                return super(Distributed, self).step(evaluate, **kwargs)
            return step_with_scaler(self, update)

        return coordinator.step(run, closure)

    # Keeps torch from wrapping it to run step hooks: the given optimizer's step does.
    step.hooked = True  # type: ignore[attr-defined]

    def skip_step(self) -> None:
        """Take part in the step's communication, but skip the step itself.

        For a rank that does not want to step when the others do, for example after a
        loss that is not finite.
        """
        _coordinator(self).step(None, None)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as in the given optimizer."""
        _coordinator(self).before_zero_grad()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the given optimizer's state, with bluecomm's under ``"bluecomm"``."""
        coordinator = _coordinator(self)
        coordinator.settle(for_writing=False)
        state: dict[str, Any] = super().state_dict()
        state[STATE_KEY] = coordinator.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from ``state_dict`` of this or of a plain optimizer."""
        coordinator = _coordinator(self)
        coordinator.settle(for_writing=True)
        plain = {key: value for key, value in state_dict.items() if key != STATE_KEY}
        super().load_state_dict(plain)
        # A scheduler made before wrapping still refers to the given optimizer.
        coordinator.given.__dict__["state"] = self.state
        coordinator.given.__dict__["param_groups"] = self.param_groups
        if STATE_KEY in state_dict:
            coordinator.load_state_dict(state_dict[STATE_KEY])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise an error, since the buckets are laid out already.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "a DistributedOptimizer takes no new parameters; add the group to the "
            "optimizer first, then wrap it (again)"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy is a plain optimizer: the other ranks have no counterpart of it.
        return copy_as_plain(self)

    # -- methods of distributed optimizers ---------------------------------------------

    def synchronize(self) -> None:
        """Wait for communication under way, so gradients and parameters are final.

        Call it before code that reads or changes parameters by other means than the
        model's ``forward`` and ``state_dict``.
        """
        _coordinator(self).synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let ``step`` use the gradients as they are; for Horovod's scripts.

        It is not needed here: after ``synchronize``, ``step`` does not communicate
        again.
        """
        coordinator = _coordinator(self)
        was, coordinator.skips_synchronize = coordinator.skips_synchronize, True
        try:
            yield
        finally:
            coordinator.skips_synchronize = was

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes accumulate gradients without communication.

        The next backward pass outside the block, or ``step``, sends the sum.
        """
        with _coordinator(self).no_sync():
            yield

    def turn_on_timeline(self) -> None:
        """Record forward, backward and step in the timeline; this is the default."""
        if phases := _coordinator(self).phases:
            phases.turn_on()

    def turn_off_timeline(self) -> None:
        """Stop recording forward, backward and step in the timeline."""
        if phases := _coordinator(self).phases:
            phases.turn_off()

    @refuse_unfit_calls(_refused_join, _communicator)
    def join(self) -> int:
        """Take part without data until all ranks have joined.

        For ranks that run out of data before others. Collective.

        Returns:
            The last rank to join. With gradient allreduce its model has taken all
            steps; the others get it by ``broadcast_parameters``.

        Raises:
            ValueError: The algorithm does not support ``join``, or needs
                ``uneven_inputs=True``.
            MismatchError: Another rank refuses its call. This rank still counts as
                joined, so call the method again.
        """
        return _coordinator(self).join()

    def abort(self) -> None:
        """Stop the rounds of ``async`` or ``quorum_diloco``. Collective.

        This rank takes part in rounds until all ranks have made the call; then the
        parameters are equal on all ranks. It may be called at different steps.
        Neither evaluation nor the end of the program needs it.

        Raises:
            ValueError: The algorithm is another one.
            FloatingPointError: Parameters were not finite in a round. All ranks have
                ended by then.
            BluecommError: A round failed.
        """
        _coordinator(self).abort()

    def resume(self) -> None:
        """Go on with rounds after ``abort``, on all ranks.

        Raises:
            ValueError: The algorithm is another one.
        """
        _coordinator(self).resume()

    def unregister_window(self) -> None:
        """Free the windows of ``win_put``, ``pull_get`` or ``push_sum``.

        Collective. The parameters keep their values, and the topology can change again.
        The optimizer cannot step any more.

        Raises:
            ValueError: The algorithm has no windows.
        """
        _coordinator(self).unregister_windows()


def _check_scaler(optimizer: Distributed, coordinator: Coordinator) -> None:
    """Raise if ranks could skip different steps.

    Raises:
        ValueError: A scaler is in use, and gradients are averaged.
    """
    is_alone = coordinator.comm.size == 1 or not coordinator.algorithm.flat_gradients
    if is_alone or not is_scaled(optimizer):
        return
    raise ValueError(
        f"DistributedOptimizer: {type(coordinator.algorithm).__name__} does not work "
        "with GradScaler and local parameters: a rank whose expert alone has an "
        "infinite gradient would skip the step alone, and the other parameters would "
        "differ between ranks from then on. Use bfloat16, which needs no scaler, or an "
        "algorithm that averages parameters"
    )


def _set_step_setting(coordinator: Coordinator, name: str, value: object) -> None:
    if coordinator.algorithm.flat_gradients:
        raise AttributeError(
            f"{type(coordinator.algorithm).__name__} has no {name!r}: it averages "
            "gradients over all ranks; use a parameter-averaging algorithm"
        )
    if name.startswith("dst_") and not (value is None or isinstance(value, Mapping)):
        # The value is read in every step, but an iterator can be read only once.
        value = list_ranks(value, f"optimizer.{name}")
    setattr(coordinator.settings, name, value)
