"""Defines the interface of algorithms: a few hooks that the coordinator calls.

docs/optimizer.md shows when each hook is called. A new algorithm is one file::

    @register_algorithm("every_other")
    class EveryOther(Algorithm):
        flat_gradients = True

        def on_gradients_ready(self, bucket): ...
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bluecomm.errors import CommunicationTimeout
from bluecomm.ops.refusal import Operation
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.failures import Failures
from bluecomm.optim.options import CommonOptions, StepSettings
from bluecomm.optim.parameter_names import NamedParameters
from bluecomm.optim.schedule import Schedule
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.epochs.transaction import Transaction
from bluecomm.runtime.handle import Result

# A reason for ``no_join``.
MOMENTUM_GROWS_OLD = (
    "a momentum without new gradients would count as much as the others"
)

_ALONE = contextlib.nullcontext()
_SKIPPED = (
    "A rank that leaves out optimizer.step() must call optimizer.skip_step() instead, "
    "since every rank takes part in every round."
)


@dataclasses.dataclass(frozen=True)
class Context:
    """The distributed optimizer, as its algorithm sees it.

    Attributes:
        comm: Ranks that take part.
        name: Prefix of the names of the optimizer's operations, equal on all ranks.
        options: Options of ``DistributedOptimizer`` that do not depend on the
            algorithm.
        settings: Attributes of the optimizer that the user may set before each step.
        schedule: Decides which steps have a round.
        sparse_parameters: The ``id`` of each parameter whose gradients are known to be
            sparse; empty if they are to be made dense.
    """

    comm: Communicator
    name: str
    options: CommonOptions
    settings: StepSettings
    schedule: Schedule
    sparse_parameters: frozenset[int]


class Algorithm:
    """Decides how one optimizer communicates. Each hook does nothing by default.

    The constructor takes the ``**algorithm_options`` of ``DistributedOptimizer``.
    ``context`` is set before ``setup`` is called.
    """

    # Whether the parameters' values (in two halves) or their gradients live in flat
    # memory.
    flat_parameters = False
    flat_gradients = False
    # Whether the other ranks can go on when one is lost.
    survives_losses = False
    # Whether ranks that are cut off from each other may all train on, and mix their
    # models once they reach each other again.
    trains_apart = False
    # Whether it can go on in another generation, with newcomers; see ``move``.
    admits_newcomers = False
    # Whether a rank can go on with a copy of another rank's state, as newcomers do. If
    # not, the state is valid only together with that of all other ranks, and all ranks
    # begin anew.
    hands_over_state = False
    # Whether all of its work lies between ``on_gradients_ready`` and the end of
    # ``after_backward``, so that it needs no optimizer; see ``ddp_comm_hook``. Not
    # inherited: a derived algorithm may add work elsewhere, so it says so itself.
    works_in_backward = False
    # Whether its option ``momentum`` stands in for that of the user's optimizer, which
    # must have none.
    brings_momentum = False
    # Whether parameters may be on a device, such as a GPU. Hooks between the start of a
    # forward pass and the end of a step should neither read values of the device nor
    # write values of the host to it, because both wait for the device;
    # docs/optimizer.md lists those that do. Not inherited, as above; an object may set
    # it to False, depending on its options.
    works_on_devices = False
    # Whether the result of a training depends on the speed of ranks and links.
    depends_on_speed = False
    # Whether no rank ends its training before all do. Then an optimizer whose model a
    # rank has dropped lives on until ``abort`` or the end of the world.
    ends_with_others = False
    # Whether it leaves values in windows, which ``unregister_window`` frees.
    has_windows = False
    # Whether it can go on with other buckets of the same parameters; see ``rebucket``.
    rebuckets = False
    # The options in CommonOptions that this algorithm uses. A value other than the
    # default is an error for all others.
    honours: frozenset[str] = frozenset()
    # Bytes that are sent together unless the user says otherwise. All values are ready
    # when a round begins, so few large operations are best.
    default_bucket_nbytes = 25 << 20
    # Steps from one round to the next unless the user says otherwise.
    default_steps_per_communication = 1

    context: Context
    # The constructor's arguments, which must agree between ranks.
    given_options: Mapping[str, object] = {}

    @classmethod
    def needed_optimizer(
        cls, parameters: Any, lr: float, warmup_steps: int
    ) -> torch.optim.Optimizer | None:
        """Return a new optimizer of the kind that it needs; ``None`` if any will do.

        Args:
            parameters: Parameters or param groups.
            lr: Learning rate, one that suits Adam.
            warmup_steps: Steps of the warm-up, if such an optimizer has one.
        """
        return None

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        """Return the memory of a rank, in multiples of the size of the model.

        Counts the values, the gradients and what the algorithm adds to them, with its
        default options; not the state of the user's optimizer.

        Args:
            ranks: Number of ranks; memory may depend on it.
            neighbors: Number of out-neighbors in the topology.
        """
        # Gradients are in buckets, and parameters have a half for the next values.
        return 3 if cls.flat_parameters else 2

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        """Raise, or log a warning, if the user's optimizer does not suit the algorithm.

        Called before ``setup``.

        Args:
            optimizer: The plain optimizer.
            comm: Ranks that take part; the first one logs.
        """

    def steps_per_round(self, options: CommonOptions) -> int:
        """Return the number of steps from one round to the next.

        Called before ``setup``.

        Args:
            options: Options that do not depend on the algorithm.

        Raises:
            ValueError: The options do not fit those of the algorithm.
        """
        return options.num_steps_per_communication

    def assign_groups(
        self, named: NamedParameters, groups: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Return the group of each parameter, by ``id``; groups become buckets.

        Called before ``setup``.

        Args:
            named: All parameters, in the order of use.
            groups: The groups that the user wants; may be empty.

        Raises:
            ValueError: The groups or the parameters do not fit the algorithm.
        """
        return groups

    def setup(self, buckets: Sequence[Bucket]) -> None:
        """Take the buckets, in the order in which gradients become ready."""

    def rebucket(self, buckets: Sequence[Bucket]) -> None:
        """Go on with other buckets of the same parameters, with the state as it is.

        Called between two steps, at the same one on all ranks, with no communication
        under way; only if ``rebuckets``. By default ``setup``, for algorithms that keep
        nothing between steps.

        Args:
            buckets: As in ``setup``.
        """
        self.setup(buckets)

    def follows_backward(self) -> bool:
        """Return whether gradients are to be announced; asked once, after ``setup``."""
        return self.flat_gradients

    def before_forward(self, bucket: Bucket) -> None:
        """Start communication that runs during the forward and backward pass.

        Called for each bucket, in order of use, in the first training forward pass of
        a step that has a round.
        """

    def on_gradients_ready(self, bucket: Bucket) -> None:
        """Start the exchange of a bucket's gradients, all of which are ready.

        Called only with ``flat_gradients``: once per bucket in each backward pass that
        communicates, the same number of times on every rank.
        """

    def after_backward(self) -> None:
        """Wait for the buckets announced by ``on_gradients_ready``."""

    def before_step(self) -> None:
        """Prepare parameters and gradients for the user's step."""

    def before_update(self) -> None:
        """Change the gradients that the user's step is about to use.

        Called inside the step, with unscaled gradients, after each evaluation of a
        closure. Not called if the step itself is skipped.
        """

    def after_step(self) -> None:
        """Start the communication that follows the user's step, even a skipped one."""

    def settle(self, *, for_writing: bool) -> None:
        """Make the values of the parameters final before they are read.

        Args:
            for_writing: Whether they will also be changed.
        """

    def restart(self) -> None:
        """Begin anew with the current parameters and gradients.

        Called on all ranks that are left, before the first round of their new graph
        after a loss, and on all ranks but newcomers when these join. Algorithms whose
        state depends on that of all ranks override it.
        """

    def obstacle_to_growth(self, size: int) -> str:
        """Return why it cannot go on with ``size`` ranks, as a clause, or ""."""
        return ""

    def move(self) -> None:
        """Go on in ``context.comm``, which has changed, among all of its ranks.

        It has the ranks that it had before, and perhaps more.

        Called between two steps, at the same one on all ranks, with no communication
        under way; only if ``admits_newcomers``.
        """

    def drain(self) -> None:
        """Wait for all operations under way before the world ends."""
        self.settle(for_writing=False)

    def joins_in_engine(self) -> bool:
        """Return whether its exchanges go on while ranks that joined send nothing.

        ``bf.join()`` answers the reductions of the others with zeros, so this holds for
        algorithms that only reduce over all ranks.
        """
        return False

    def obstacle_to_join(self) -> str:
        """Return why a rank cannot take part without data, and what to do, or "".

        A clause that follows the algorithm's name. By default there is an obstacle:
        only an algorithm that overrides this and ``continue_until_all_join`` can join.
        """
        return no_join()

    def continue_until_all_join(self) -> int:
        """Take part without data until all ranks do; return the last rank to join.

        Called only if there is no ``obstacle_to_join``.
        """
        raise NotImplementedError

    def refused_join(self) -> Iterator[Operation]:
        """Describe the round with which ``continue_until_all_join`` would begin.

        A rank that refuses the call takes the numbers of these operations, and the
        other ranks' round fails. Without operations nobody is told. Called only if
        there is no ``obstacle_to_join``.
        """
        return iter(())

    def abort(self) -> None:
        """Stop to communicate in the background, once all ranks have called it.

        Raises:
            ValueError: The algorithm does not communicate in the background.
        """
        raise _never_in_background(self, "abort")

    def resume(self) -> None:
        """Go on to communicate in the background.

        Raises:
            ValueError: The algorithm does not communicate in the background.
        """
        raise _never_in_background(self, "resume")

    def finalize(self) -> None:
        """Finish all operations before another optimizer takes over the parameters."""
        self.settle(for_writing=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state with which the algorithm continues after a restart."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``state_dict`` returned."""


def no_join(reason: str = "") -> str:
    """Return the obstacle to ``join`` of an algorithm that needs data of all ranks.

    Args:
        reason: Why, as a clause.
    """
    why = f", because {reason}" if reason else ""
    return f"has no join{why}; give all ranks the same number of batches"


def _never_in_background(algorithm: Algorithm, call: str) -> ValueError:
    return ValueError(
        f"{call}: {type(algorithm).__name__} communicates in steps only, so there is "
        "nothing to stop; only async and quorum_diloco communicate in the "
        "background"
    )


class Round:
    """The operations of one exchange with the other ranks, one for each bucket.

    In a job that survives losses their results are released together, if they are
    collectives of all ranks.
    """

    def __init__(self) -> None:
        self._handles: list[tuple[Bucket, Handle[torch.Tensor]]] = []
        self._transaction: Transaction | None = None

    def __bool__(self) -> bool:
        return bool(self._handles)

    def begin_together(
        self, comm: Communicator, name: str, buckets: int, *, in_background: bool
    ) -> None:
        """Begin a round of collectives; see ``Communicator.begin_together``."""
        self._transaction = comm.begin_together(
            name, buckets, in_background=in_background
        )

    def begin_apart(self) -> None:
        """Begin a round of operations that go on without lost ranks."""
        self._transaction = None

    def starting(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which the round's collectives are started."""
        return self._transaction or _ALONE

    @property
    def contributors(self) -> int | None:
        """Number of ranks in the results of a round that has been waited for.

        ``None`` if the round was not begun by ``begin_together``, or the job ends with
        the first loss.
        """
        return None if self._transaction is None else self._transaction.contributors

    def add(self, bucket: Bucket, handle: Handle[torch.Tensor]) -> None:
        """Add the operation that has been started for a bucket."""
        self._handles.append((bucket, handle))

    def wait(self) -> list[tuple[Bucket, torch.Tensor]]:
        """Wait for all operations; return the buckets and their results.

        The round is empty afterwards, even if an operation failed.

        Raises:
            BluecommError: An operation failed. All operations have finished by then;
                the first error is raised.
        """
        handles, self._handles = self._handles, []
        results: list[tuple[Bucket, torch.Tensor]] = []
        failures = Failures()
        for bucket, handle in handles:
            with failures.kept():
                results.append((bucket, wait_for(handle)))
        failures.raise_first()
        return results


def wait_for(handle: Handle[Result]) -> Result:
    """Wait for one operation of a round; a timeout says which mistake may cause it."""
    try:
        return handle.wait()
    except CommunicationTimeout as error:
        error.advise(_SKIPPED)
        raise
