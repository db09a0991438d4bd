"""Turns what the user does into the events of an algorithm.

The state machine is in docs/optimizer.md.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from bluecomm.optim import ownership
from bluecomm.optim.agreement import check_agreement
from bluecomm.optim.algorithm import Algorithm, Context
from bluecomm.optim.buckets.bucket import build_buckets
from bluecomm.optim.buckets.views import check_kind
from bluecomm.optim.hooks import model_hooks
from bluecomm.optim.hooks.backward import BackwardTracker
from bluecomm.optim.hooks.phases import Phases
from bluecomm.optim.options import CommonOptions, StepSettings
from bluecomm.optim.parameter_names import Models, NamedParameters, module_parameters
from bluecomm.optim.schedule import Schedule
from bluecomm.runtime import Communicator
from bluecomm.topology import TopologySchedule

_log = logging.getLogger("bluecomm")

_NOT_SHOWN = contextlib.nullcontext()

_Result = TypeVar("_Result")


class Coordinator:
    """What stands behind one distributed optimizer.

    The models keep it alive, so that a round that is under way when the optimizer is
    dropped still gets finished; new rounds need the optimizer.

    Args:
        optimizer: The distributed optimizer; not kept alive.
        given: The optimizer that the user gave, which schedulers may know.
        models: Models whose forward passes begin steps; may be none.
        named: Its parameters, in the order of use.
        algorithm: What to do.
        options: Common options.
        comm: Ranks that take part.
        group_of: ``id`` of a parameter to the group in which it is sent.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        given: torch.optim.Optimizer,
        models: Models,
        named: NamedParameters,
        algorithm: Algorithm,
        options: CommonOptions,
        comm: Communicator,
        group_of: Mapping[int, int],
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.given = given
        self.algorithm = algorithm
        self.settings = StepSettings()
        self._schedule = Schedule(options.num_steps_per_communication)
        self._in_step = False
        self._has_announced = False
        self._is_retired = False
        self.skips_synchronize = False
        name = f"optim.{ownership.next_number(comm)}"
        self.buckets = build_buckets(
            named,
            prefix=f"{name}.bucket",
            bucket_nbytes=options.bucket_bytes,
            group_of=group_of,
        )
        if algorithm.flat_parameters or algorithm.flat_gradients:
            what = [type(algorithm).__name__, str(options), *_in_words(algorithm)]
            check_agreement(comm, name, what, self.buckets)
        ownership.take_over([parameter for _, parameter in named], self)
        self.context = Context(comm, name, options, self.settings, self._schedule)
        algorithm.context = self.context
        algorithm.setup(self.buckets)
        self._tracker: BackwardTracker | None = None
        if algorithm.follows_backward():
            passes = (
                options.backward_passes_per_step * options.num_steps_per_communication
            )
            self._tracker = BackwardTracker(algorithm, self.buckets, passes)
        self._module_parameters = module_parameters(models, named)
        self._sees_forwards = bool(models)
        self._handles = model_hooks.attach(models, self)
        recorder = comm.world.recorder
        self.phases = None if recorder is None else Phases(recorder, models)
        if self.phases is not None:
            self.phases.turn_on()

    @property
    def is_live(self) -> bool:
        """Whether its optimizer exists and owns the parameters."""
        return self._optimizer() is not None and not self._is_retired

    def retire(self) -> None:
        """Finish what is under way and give the parameters to another optimizer."""
        if not self._is_retired:
            self.algorithm.finalize()
            self._is_retired = True
            if self._tracker is not None:
                self._tracker.close()
            for handle in self._handles:
                handle.remove()
            if self.phases is not None:
                self.phases.turn_off()

    # -- what models do ---------------------------------------------------------------

    def on_forward(self, model: nn.Module) -> None:
        """Begin a step, if this is a training forward pass and the first of the step.

        A pass inside ``step`` (a closure) belongs to the step that is under way.
        """
        if self._in_step or self._is_retired:
            return
        self.settle(for_writing=False)
        if not (model.training and torch.is_grad_enabled() and self.is_live):
            return
        self._restore_replaced()
        if self._tracker is not None:
            self._tracker.watch_parameters()
        self._schedule.on_forward()
        if self._schedule.is_due and not self._has_announced:
            self._has_announced = True
            for bucket in reversed(self.buckets):
                self.algorithm.before_forward(bucket)

    def on_model_read(self) -> None:
        """See ``model_hooks.Listener``."""
        self.settle(for_writing=False)

    def on_model_write(self) -> None:
        """See ``model_hooks.Listener``."""
        self.settle(for_writing=True)

    # -- what the user does with the optimizer ----------------------------------------

    def step(
        self,
        run: Callable[[Callable[[], Any] | None], _Result] | None,
        closure: Callable[[], Any] | None,
    ) -> _Result | None:
        """Run one step around the user's own.

        Args:
            run: The user's step, which takes a closure; ``None`` to leave it out.
            closure: What the user gave as the closure.
        """
        self.check_usable()
        self._restore_replaced()
        self._in_step = True
        try:
            if closure is None:
                self._flush()
            self.algorithm.before_step()
            with self.phases or _NOT_SHOWN:
                result = None if run is None else run(self._exchanging(closure))
            self.algorithm.after_step()
            if not self._sees_forwards:
                # Nothing would tell that the next forward pass reads the parameters.
                self.algorithm.settle(for_writing=True)
            self._schedule.on_step()
            if self._tracker is not None:
                self._tracker.on_step()
            return result
        finally:
            self._in_step = False
            self._has_announced = False

    def synchronize(self) -> None:
        """Make parameters and gradients final."""
        self.check_usable()
        if self._tracker is not None:
            self._tracker.flush()
        self.settle(for_writing=False)

    def before_zero_grad(self) -> None:
        """Prepare for gradients to be dropped."""
        self.settle(for_writing=False)
        if self._tracker is not None:
            self._tracker.watch_parameters()
            self._tracker.reset()

    def settle(self, *, for_writing: bool) -> None:
        """Make the values of the parameters final."""
        if not self._is_retired:
            self.algorithm.settle(for_writing=for_writing)

    def drain(self) -> None:
        """Wait for what is under way, while there is a world."""
        if not self._is_retired:
            self.algorithm.drain()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes only add up."""
        if self._tracker is None:
            yield
        else:
            with self._tracker.paused():
                yield

    def join(self) -> int:
        """Take part without data until all ranks do."""
        self.check_usable()
        return self.algorithm.join()

    def state_dict(self) -> dict[str, Any]:
        """Return what goes into the optimizer's state dict."""
        return {
            "schedule": self._schedule.state_dict(),
            "algorithm": self.algorithm.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""
        self._schedule.load_state_dict(state["schedule"])
        self.algorithm.load_state_dict(state["algorithm"])

    def check_usable(self) -> None:
        """Raise if another optimizer has the parameters.

        Raises:
            RuntimeError: They were wrapped again.
        """
        if self._is_retired:
            raise RuntimeError(
                "this DistributedOptimizer has handed its parameters to one that was "
                "made later; use that one"
            )

    # -- helpers ----------------------------------------------------------------------

    def _flush(self) -> None:
        if self._tracker is not None and not self.skips_synchronize:
            self._tracker.flush()

    def _exchanging(self, closure: Callable[[], Any] | None) -> Any:
        """Return a closure after which the gradients are final."""
        if closure is None:
            return None

        def evaluate() -> Any:
            result = closure()
            self._flush()
            self.algorithm.before_update()
            return result

        return evaluate

    def _restore_replaced(self) -> None:
        """Put parameters back that ``load_state_dict(assign=True)`` replaced."""
        returned = []
        for entry in self._module_parameters:
            found = entry.module._parameters.get(entry.attribute)
            if found is entry.parameter or found is None:
                continue
            check_kind(entry.name, entry.parameter, found)
            self.settle(for_writing=True)
            with torch.no_grad():
                entry.parameter.copy_(found)
            entry.module._parameters[entry.attribute] = entry.parameter
            returned.append(entry.name)
        if returned:
            _log.warning(
                "%s: the model got other parameters than the optimizer has; kept the "
                "optimizer's, with the new values: %s",
                self.context.name,
                ", ".join(returned),
            )


def _in_words(algorithm: Algorithm) -> list[str]:
    """Return the options of an algorithm that all ranks must give alike."""
    return [
        f"{name}={value!r}"
        for name, value in sorted(algorithm.given_options.items())
        if isinstance(value, (str, int, float, TopologySchedule))
    ]
