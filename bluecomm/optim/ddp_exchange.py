"""Runs an algorithm on the buckets of torch's DistributedDataParallel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from bluecomm.optim.algorithm import Algorithm, Context
from bluecomm.optim.algorithm_state import load_algorithm_state, state_of_algorithm
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.local_parameters import is_local
from bluecomm.optim.model_facts import check_buckets, options_in_words
from bluecomm.optim.options import CommonOptions, StepSettings
from bluecomm.optim.ownership import next_number
from bluecomm.optim.schedule import Schedule
from bluecomm.runtime import Communicator

CALL = "ddp_comm_hook"


class GradBucket(Protocol):
    """The part of torch's ``GradBucket`` that is used here."""

    def index(self) -> int:
        """Return its number in the backward pass."""

    def is_last(self) -> bool:
        """Return whether it is the last one of the backward pass."""

    def buffer(self) -> torch.Tensor:
        """Return the flat gradients."""

    def gradients(self) -> list[torch.Tensor]:
        """Return each parameter's part of the buffer."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters."""


@dataclasses.dataclass(eq=False)
class _Pending:
    """A bucket of the backward pass under way, and the future of its result."""

    buffer: torch.Tensor
    gradients: list[torch.Tensor]
    parameters: list[torch.Tensor]
    future: torch.futures.Future[torch.Tensor]
    is_started: bool = False
    is_finished: bool = False


class DdpExchange:
    """The exchanges of one model's gradients.

    DistributedDataParallel passes its buckets in the same order on all ranks, as their
    gradients become ready. Each one has a bucket of the algorithm, which starts its
    exchange at once. All exchanges end in the call with the last bucket, so they need
    no thread.

    In the first backward pass the later buckets are not known yet, so all exchanges
    start at its end. The same holds when DistributedDataParallel has rebuilt its
    buckets, which it does once, after that pass.

    Args:
        make_algorithm: Returns a new algorithm.
        options: Options that do not depend on the algorithm.
        comm: Ranks that take part; at least two.
        state: What ``state_dict`` returned in an earlier run, to go on from; may be
            empty.
    """

    def __init__(
        self,
        make_algorithm: Callable[[], Algorithm],
        options: CommonOptions,
        comm: Communicator,
        state: Mapping[str, Any],
    ) -> None:
        self._make_algorithm = make_algorithm
        self._options = options
        self._comm = comm
        self._state = state
        self._name = f"{CALL}.{next_number(comm)}"
        self._layouts = 0
        self._algorithm: Algorithm | None = None
        self._buckets: list[Bucket] = []
        # The parameters of each bucket, by ``id``.
        self._layout: list[list[int]] = []
        # Has the gradient of a parameter, by the parameter's ``id``.
        self._holders: dict[int, torch.Tensor] = {}
        # Its place in the first layout, which each run of a model begins with.
        self._labels: dict[int, str] = {}
        self._pass: list[_Pending] = []

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take a bucket that is ready; return the future of its result.

        Raises:
            ValueError: The buckets belong to another model, or a gradient cannot be
                exchanged.
            MismatchError: The ranks differ in options or buckets.
            BluecommError: The communication failed.
        """
        if bucket.index() == 0:
            self._pass = []  # the pass before has ended, or was broken off
        one = self._pending(bucket)
        self._pass.append(one)
        with torch.no_grad():
            if self._fits(len(self._pass) - 1):
                self._start(len(self._pass) - 1)
            else:
                self._leave_layout()
            if bucket.is_last():
                self._end()
        return one.future

    def state_dict(self) -> dict[str, Any]:
        """Return the state with which another run goes on."""
        if self._algorithm is None:
            return dict(self._state)
        return state_of_algorithm(self._algorithm)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned."""
        self._state = state
        if self._algorithm is not None:
            load_algorithm_state(self._algorithm, state, "the hook's state")

    def _pending(self, bucket: GradBucket) -> _Pending:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if buffer.layout is not torch.strided:
            raise ValueError(
                f"{CALL}: bucket {bucket.index()} has the sparse gradient of a "
                f"parameter of shape {tuple(parameters[0].shape)}; use layers with "
                "sparse=False, or bf.DistributedOptimizer with gradient_allreduce "
                "instead of DistributedDataParallel"
            )
        for parameter in parameters:
            if is_local(parameter):
                raise ValueError(
                    f"{CALL}: the local parameter of shape {tuple(parameter.shape)} is "
                    f"in bucket {bucket.index()}; call bf.mark_local(model) before "
                    "DistributedDataParallel(model), which leaves it out then"
                )
        devices: list[int | str | torch.device] = []
        if buffer.device.type != "cpu":
            devices.append(buffer.device)
        future = torch.futures.Future[torch.Tensor](devices=devices)
        return _Pending(buffer, bucket.gradients(), parameters, future)

    def _fits(self, index: int) -> bool:
        """Return whether the layout has this bucket of the pass under way."""
        mine = self._layout[index] if index < len(self._layout) else None
        return mine == [id(p) for p in self._pass[index].parameters]

    def _start(self, index: int) -> None:
        """Start the exchange of one bucket of the pass under way."""
        algorithm, one = self._algorithm, self._pass[index]
        assert algorithm is not None
        one.is_started = True
        for parameter, gradient in zip(one.parameters, one.gradients, strict=True):
            holder = self._holders[id(parameter)]
            # The gradient may be on a GPU where the holder is not.
            holder.grad = gradient.to(holder.device, holder.dtype)
        algorithm.on_gradients_ready(self._buckets[index])

    def _finish(self) -> None:
        """Finish the exchanges that have been started."""
        started = [one for one in self._pass if one.is_started and not one.is_finished]
        if not started or self._algorithm is None:
            return
        self._algorithm.after_backward()
        for one in started:
            for parameter, gradient in zip(one.parameters, one.gradients, strict=True):
                result = self._holders[id(parameter)].grad
                assert result is not None
                gradient.copy_(result)
            one.future.set_result(one.buffer)
            one.is_finished = True

    def _leave_layout(self) -> None:
        """Give up a layout that the pass under way does not have."""
        self._finish()
        self._layout = []

    def _end(self) -> None:
        """Exchange the rest of the pass under way."""
        if not self._layout:
            self._lay_out()
        for index, one in enumerate(self._pass):
            if not one.is_started:
                self._start(index)
        self._finish()

    def _lay_out(self) -> None:
        """Make the algorithm's buckets for those of the pass under way.

        Raises:
            ValueError: They have other parameters than before.
            MismatchError: The ranks differ.
        """
        algorithm, state = self._algorithm, self.state_dict()
        if algorithm is None or not algorithm.rebuckets:
            algorithm = self._make_algorithm()
        self._make_holders(on_devices=algorithm.works_on_devices)
        self._layouts += 1
        prefix = f"{self._name}.{self._layouts}"
        self._buckets = [
            self._bucket(f"{prefix}.bucket.{number}", one)
            for number, one in enumerate(self._pass)
        ]
        words = options_in_words(algorithm, self._options)
        check_buckets(self._comm, prefix, words, self._buckets, caller=CALL)
        if algorithm is self._algorithm:
            algorithm.rebucket(self._buckets)
        else:
            algorithm.context = self._context()
            algorithm.setup(self._buckets)
            if state:
                load_algorithm_state(algorithm, state, "the hook's state")
        self._algorithm = algorithm
        self._layout = [[id(p) for p in one.parameters] for one in self._pass]

    def _make_holders(self, *, on_devices: bool) -> None:
        found = {
            id(parameter): gradient
            for one in self._pass
            for parameter, gradient in zip(one.parameters, one.gradients, strict=True)
        }
        if not self._holders:
            self._holders = {
                key: _holder_of(gradient, on_devices=on_devices)
                for key, gradient in found.items()
            }
            self._labels = {
                id(parameter): f"{number}.{position}"
                for number, one in enumerate(self._pass)
                for position, parameter in enumerate(one.parameters)
            }
        if found.keys() != self._holders.keys():
            raise ValueError(
                f"{CALL}: the hook has been registered with a second model; make "
                "another one with bf.ddp_comm_hook for each DistributedDataParallel"
            )

    def _bucket(self, name: str, one: _Pending) -> Bucket:
        slots: list[Slot] = []
        for key in map(id, one.parameters):
            offset = slots[-1].end if slots else 0
            slots.append(Slot.of(self._labels[key], self._holders[key], offset))
        return Bucket(name, slots, slots[-1].end)

    def _context(self) -> Context:
        return Context(
            self._comm,
            self._name,
            self._options,
            StepSettings(),
            Schedule(1),
            frozenset(),
        )


def _holder_of(gradient: torch.Tensor, *, on_devices: bool) -> torch.Tensor:
    """Return a tensor that stands for a parameter, without memory for its values.

    Args:
        gradient: The parameter's gradient.
        on_devices: Whether it is where the gradient is; otherwise it is on the host.
    """
    device = gradient.device if on_devices else torch.device("cpu")
    return gradient.new_empty(1, device=device).expand(gradient.shape)
