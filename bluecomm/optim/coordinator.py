"""Turns calls on the models and on the optimizer into the hooks of an algorithm.

docs/optimizer.md describes the state machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from bluecomm.errors import ShutdownError
from bluecomm.ops.join import refuse_join
from bluecomm.ops.refusal import Operation, refusing
from bluecomm.optim import ownership
from bluecomm.optim.added_parameters import AddedParameters
from bluecomm.optim.agreement import FIRST_OPERATION
from bluecomm.optim.algorithm import Algorithm, Context
from bluecomm.optim.algorithm_state import load_algorithm_state, state_of_algorithm
from bluecomm.optim.autotune.tuning import Tuning
from bluecomm.optim.buckets.bucket import build_buckets
from bluecomm.optim.hooks import model_hooks
from bluecomm.optim.hooks.backward import BackwardTracker
from bluecomm.optim.hooks.phases import Phases
from bluecomm.optim.local_parameters import is_local
from bluecomm.optim.model_facts import check_buckets, options_in_words
from bluecomm.optim.options import CommonOptions, StepSettings
from bluecomm.optim.parameter_names import Models, NamedParameters, module_parameters
from bluecomm.optim.registry import name_of
from bluecomm.optim.replaced_parameters import restore_replaced
from bluecomm.optim.schedule import Schedule
from bluecomm.optim.sparse_gradients import sparse_parameters
from bluecomm.runtime import Communicator

_log = logging.getLogger("bluecomm")

_NOT_SHOWN = contextlib.nullcontext()

_Result = TypeVar("_Result")


class Coordinator:
    """Drives the algorithm of one distributed optimizer.

    The models keep the coordinator alive, so a round under way still finishes after the
    optimizer has been dropped. New rounds need the optimizer.

    Args:
        name: Name of its operations, which differs between optimizers.
        optimizer: The distributed optimizer; held by a weak reference.
        given: The optimizer that the user wrapped, which schedulers may refer to.
        models: Models whose forward passes begin steps; may be empty.
        everything: The optimizer's parameters, in the order of use.
        named: The parameters that are exchanged.
        algorithm: The algorithm, not yet set up.
        options: Options that do not depend on the algorithm.
        comm: Ranks that take part.
        group_of: Maps the ``id`` of a parameter to the group in which it is sent.
        tuning: Tunes its options, if they are to be tuned.
    """

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        given: torch.optim.Optimizer,
        models: Models,
        everything: NamedParameters,
        named: NamedParameters,
        algorithm: Algorithm,
        options: CommonOptions,
        comm: Communicator,
        group_of: Mapping[int, int],
        tuning: Tuning | None = None,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.given = given
        self.algorithm = algorithm
        self.settings = StepSettings()
        self._in_step = False
        self._has_announced = False
        self._is_retired = False
        self._why_retired = (
            "this DistributedOptimizer has handed its parameters to one that was made "
            "later; use the later one"
        )
        self.skips_synchronize = False
        with refusing(comm, "DistributedOptimizer", name, FIRST_OPERATION):
            self._schedule = Schedule(algorithm.steps_per_round(options))
            self._make_buckets = functools.partial(
                build_buckets,
                named,
                prefix=f"{name}.bucket",
                group_of=algorithm.assign_groups(named, group_of),
            )
            self.buckets = self._make_buckets(bucket_nbytes=options.bucket_bytes)
        sparse = frozenset[int]()
        if algorithm.flat_gradients and not options.sparse_as_dense:
            sparse = sparse_parameters(models)
        if algorithm.flat_parameters or algorithm.flat_gradients:
            words = options_in_words(algorithm, options)
            words["autotune"] = "off" if tuning is None else str(tuning.space.choices)
            check_buckets(comm, name, words, self.buckets, sparse)
        ownership.take_over([parameter for _, parameter in named], self)
        self.context = Context(
            comm, name, options, self.settings, self._schedule, sparse
        )
        algorithm.context = self.context
        algorithm.setup(self.buckets)
        if algorithm.ends_with_others:
            ownership.keep(self)
        self._tracker: BackwardTracker | None = None
        if algorithm.follows_backward():
            passes = (
                options.backward_passes_per_step * options.num_steps_per_communication
            )
            self._tracker = BackwardTracker(algorithm, self.buckets, passes)
        self._module_parameters = module_parameters(models, everything)
        self._added = AddedParameters(models)
        self.has_local_parameters = any(is_local(p) for _, p in everything)
        self._sees_forwards = bool(models)
        self._handles = model_hooks.attach(models, self)
        self._tuning = tuning
        if tuning is not None:
            tuning.begin()
        recorder = comm.world.recorder
        self.phases = None if recorder is None else Phases(recorder, models)
        if self.phases is not None:
            self.phases.turn_on()

    @property
    def is_live(self) -> bool:
        """Whether the optimizer exists and still owns its parameters."""
        return self._optimizer() is not None and not self._is_retired

    def retire(self) -> None:
        """Finish the round under way and give up the parameters."""
        if not self._is_retired:
            if not self.context.comm.world.is_closed:
                self.algorithm.finalize()
            self._is_retired = True
            ownership.release(self)
            if self._tracker is not None:
                self._tracker.close()
            for handle in self._handles:
                handle.remove()
            if self.phases is not None:
                self.phases.turn_off()
            # A search that has not ended would keep its turn from other optimizers.
            self._tuning = None

    # -- events of the models ----------------------------------------------------------

    def on_forward(self, model: nn.Module) -> None:
        """Begin a step at its first training forward pass.

        A pass inside ``step``, from a closure, belongs to the step under way.
        """
        if self._in_step or self._is_retired:
            return
        self.settle(for_writing=False)
        if not (model.training and torch.is_grad_enabled() and self.is_live):
            if self._tuning is not None:
                self._tuning.interrupt()
            return
        self.check_usable()
        self._check_models()
        if self._tracker is not None:
            self._tracker.watch_parameters()
        self._schedule.on_forward()
        if self._schedule.is_due and not self._has_announced:
            self._has_announced = True
            for bucket in reversed(self.buckets):
                self.algorithm.before_forward(bucket)

    def on_model_read(self) -> None:
        """Make the parameters final before they are read."""
        self.settle(for_writing=False)

    def on_model_write(self) -> None:
        """Make the parameters final before they are overwritten."""
        self.settle(for_writing=True)

    # -- calls on the optimizer --------------------------------------------------------

    def step(
        self,
        run: Callable[[Callable[[], Any] | None], _Result] | None,
        closure: Callable[[], Any] | None,
    ) -> _Result | None:
        """Run one step around the user's own.

        Args:
            run: The user's step, which takes a closure; ``None`` to skip it.
            closure: The closure that the user passed to ``step``, if any.
        """
        self.check_usable()
        self._check_models()
        self._in_step = True
        try:
            if closure is None:
                self._flush()
            self.algorithm.before_step()
            with self.phases or _NOT_SHOWN:
                result = None if run is None else run(self._exchanging(closure))
            self.algorithm.after_step()
            if not self._sees_forwards:
                # No hook announces the next forward pass, which reads the parameters.
                self.algorithm.settle(for_writing=True)
            had_round = self._schedule.is_due
            self._schedule.on_step()
            if self._tracker is not None:
                self._tracker.on_step()
            if had_round and self._tuning is not None:
                self._tuning.on_round(self.change_options)
            return result
        finally:
            self._in_step = False
            self._has_announced = False

    def change_options(self, changed: Mapping[str, Any]) -> None:
        """Go on with other options, and other buckets of the same parameters.

        Call it between two steps, at the same one on all ranks, and only if the
        algorithm ``rebuckets``. With the same compression, training goes on as without
        it, up to the order in which the engine adds values.

        Args:
            changed: Values of ``compression``, ``allreduce_algorithm`` and
                ``bucket_bytes``, or some of them, the same on all ranks.
        """
        self.settle(for_writing=True)
        self.algorithm.drain()
        before = self.context.options.bucket_bytes
        options = dataclasses.replace(self.context.options, **changed)
        self.context = dataclasses.replace(self.context, options=options)
        self.algorithm.context = self.context
        if options.bucket_bytes == before:
            return
        self.buckets = self._make_buckets(bucket_nbytes=options.bucket_bytes)
        self.algorithm.rebucket(self.buckets)
        if self._tracker is not None:
            self._tracker.rebucket(self.buckets)

    def synchronize(self) -> None:
        """Make parameters and gradients final."""
        self.check_usable()
        if self._tracker is not None:
            self._tracker.flush()
        self.settle(for_writing=False)

    def before_zero_grad(self) -> None:
        """Prepare for the gradients to be dropped."""
        self.settle(for_writing=False)
        if self._tracker is not None:
            self._tracker.watch_parameters()
            self._tracker.reset()

    def settle(self, *, for_writing: bool) -> None:
        """Make the values of the parameters final."""
        if not self._is_retired:
            self.algorithm.settle(for_writing=for_writing)

    def drain(self) -> None:
        """Wait for all operations under way before the world ends."""
        if not (self._is_retired or self.context.comm.world.is_closed):
            self.algorithm.drain()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes accumulate gradients without communication."""
        if self._tracker is None:
            yield
        else:
            with self._tracker.paused():
                yield

    @property
    def admits_newcomers(self) -> bool:
        """Whether it can go on in another generation, with newcomers."""
        return self.algorithm.admits_newcomers and self.context.comm.is_world

    def obstacle_to_growth(self, size: int) -> str:
        """Return why it cannot go on with ``size`` ranks, as a clause, or ""."""
        return self.algorithm.obstacle_to_growth(size)

    def move(self, comm: Communicator) -> None:
        """Go on in another world, which has the same ranks, and perhaps more."""
        if not self._is_retired:
            self.context = dataclasses.replace(self.context, comm=comm)
            self.algorithm.context = self.context
            self.algorithm.move()

    @property
    def joins_in_engine(self) -> bool:
        """Whether its exchanges go on while the engine answers for joined ranks."""
        return self.algorithm.joins_in_engine()

    @property
    def comm(self) -> Communicator:
        """Ranks that take part in its exchanges."""
        return self.context.comm

    def join(self) -> int:
        """Take part without data until all ranks do; return the last rank to join."""
        self._check_join()
        return self.algorithm.continue_until_all_join()

    def refused_join(self) -> Iterator[Operation]:
        """Describe a refused call of ``join``; raise as the call would."""
        self._check_join()
        return self.algorithm.refused_join()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the optimizer's state dict stores."""
        schedule = {"schedule": self._schedule.state_dict()}
        return {**schedule, **state_of_algorithm(self.algorithm)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``state_dict`` returned."""
        self._schedule.load_state_dict(state["schedule"])
        where = "the key 'bluecomm' of the optimizer's state"
        load_algorithm_state(self.algorithm, state, where)

    def abort(self) -> None:
        """Stop communication in the background."""
        self.check_usable()
        try:
            self.algorithm.abort()
        finally:
            ownership.release(self)

    def resume(self) -> None:
        """Go on with communication in the background."""
        self.check_usable()
        self.algorithm.resume()
        if self.algorithm.ends_with_others:
            ownership.keep(self)

    def unregister_windows(self) -> None:
        """Free the windows of an asynchronous algorithm; collective.

        Raises:
            ValueError: The algorithm has no windows.
        """
        self.check_usable()
        if not self.algorithm.has_windows:
            raise ValueError(
                f"unregister_window: {type(self.algorithm).__name__} has no windows; "
                "only win_put, pull_get and push_sum have them"
            )
        self.retire()
        self._why_retired = (
            "the windows of this DistributedOptimizer have been freed by "
            "unregister_window; make a new one to continue"
        )

    def check_usable(self) -> None:
        """Raise if the optimizer can no longer step.

        Raises:
            RuntimeError: A later optimizer has the parameters, or the windows have been
                freed.
            ShutdownError: The world in which it was made has ended.
        """
        if self._is_retired:
            raise RuntimeError(self._why_retired)
        world = self.context.comm.world
        if world.is_closed:
            raise ShutdownError(
                "this DistributedOptimizer was made before bluecomm.shutdown(), which "
                "ended its communication. Call bluecomm.init(), make the optimizer "
                "again with DistributedOptimizer(...), and load the state of this one "
                "to continue: new.load_state_dict(old.state_dict())",
                operation="DistributedOptimizer",
                rank=world.rank,
            )

    # -- helpers ----------------------------------------------------------------------

    def _check_join(self) -> None:
        """Raise if a rank without data cannot take part.

        Raises:
            ValueError: The algorithm does not support it, or not with these options;
                autotune is measuring; or the job survives losses.
        """
        self.check_usable()
        refuse_join(self.comm)
        if obstacle := self.algorithm.obstacle_to_join():
            raise ValueError(f"join: {name_of(type(self.algorithm))} {obstacle}")
        if self._tuning is not None and not self._tuning.is_over:
            raise ValueError(
                "join: autotune is measuring, for which all ranks must take the same "
                "number of steps; give all ranks the same number of batches until it "
                "has ended, use the result of an earlier job (BLUECOMM_AUTOTUNE_FILE), "
                "or leave autotune out"
            )

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

    def _check_models(self) -> None:
        """Put back the parameters that were replaced, and refuse new ones."""
        returned = restore_replaced(
            self._module_parameters, lambda: self.settle(for_writing=True)
        )
        if returned:
            _log.warning(
                "%s: the model's parameters were replaced; kept the optimizer's "
                "parameters and copied the new values into them: %s",
                self.context.name,
                ", ".join(returned),
            )
        self._added.check(f"{self.context.name} on rank {self.comm.world.rank}")
