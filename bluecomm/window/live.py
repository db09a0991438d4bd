"""The windows of this rank, and how their requests are started."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.device.staging_table import staging_of
from bluecomm.device.values import values_on_host
from bluecomm.errors import BluecommError
from bluecomm.ops.neighbor_weights import Weights
from bluecomm.ops.tensor import as_input
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.check_timeout import check_timeout
from bluecomm.runtime.handle import FinishedHandle, RequestHandle
from bluecomm.window.device_values import DeviceValues
from bluecomm.window.neighbors import WindowNeighbors

if TYPE_CHECKING:
    from bluecomm._native import Window


class UnknownWindowError(KeyError, ValueError):
    """No window has that name."""

    __str__ = Exception.__str__  # KeyError.__str__ puts the text in quotes


@dataclasses.dataclass(eq=False)
class LiveWindow:
    """One window of this rank.

    Attributes:
        name: Name of the window.
        comm: Communicator of the ranks that have the window.
        tensor: The tensor given to ``win_create``, which holds the own value.
        native: The engine's window.
        device: The values, if they are in memory of a device.
        has_p: Whether this window has p even if that is turned off for all windows.
        neighbors: The neighbors and their weights.
        shape: The tensor's shape in ``win_create``.
        dtype: The tensor's type in ``win_create``.
    """

    name: str
    comm: Communicator
    tensor: torch.Tensor
    native: Window
    device: DeviceValues | None = None
    has_p: bool = False
    neighbors: WindowNeighbors = dataclasses.field(init=False)
    shape: torch.Size = dataclasses.field(init=False)
    dtype: torch.dtype = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.shape, self.dtype = self.tensor.shape, self.tensor.dtype
        self.neighbors = WindowNeighbors(self.name, self.comm, self.native, self.dtype)

    @property
    def carries_p(self) -> bool:
        """Whether puts and updates treat p as they treat the values."""
        return self.has_p or self.comm.win_ops_carry_p

    def timeout_s(self, operation: str, given: float | None) -> float:
        """Return the deadline of a request, in seconds.

        Raises:
            TypeError: ``given`` is not a number.
            ValueError: ``given`` is not above 0.
        """
        if given is None:
            return self.comm.world.config.operation_timeout_s
        check_timeout(operation, given)
        return given

    def start(
        self,
        operation: str,
        submit: Callable[[dict[int, Any], Any], int],
        keep: object,
        timeout_s: float | None,
        *,
        finish: Callable[[int], bool] = lambda _: True,
    ) -> Handle[bool]:
        """Start a request about the window; see ``World.start_request``.

        Args:
            operation: Name of the function that starts the request.
            submit: Starts the request at the engine.
            keep: Object of this request alone that must live until it has ended.
            timeout_s: Deadline that the program gave, if any.
            finish: Called by the handle's ``wait`` when the request has succeeded.

        Returns:
            Handle of the request.
        """
        world = self.comm.world
        number = world.start_request(submit, keep, timeout_s)
        if number == 0:
            return self.finished(operation, finish)
        return RequestHandle(world, number, operation, self.name, finish)

    def finished(self, operation: str, finish: Callable[[int], bool]) -> Handle[bool]:
        """Return the handle of a call that has ended except for ``finish``."""
        return FinishedHandle(self.comm.world, 0, operation, self.name, finish)

    def as_value(
        self, tensor: torch.Tensor, operation: str, timeout_s: float | None = None
    ) -> torch.Tensor:
        """Return a tensor as contiguous memory that fits the window.

        It is memory of the host, or of the device that has the window's values.

        Raises:
            TypeError: The argument is not a tensor.
            ValueError: The tensor's shape or type differs from the window's.
            CommunicationTimeout: A device has not computed it in time.
        """
        value, _ = as_input(tensor, operation, staged=True)
        if value.shape != self.shape or value.dtype != self.dtype:
            own = (
                " the window's own tensor, which is now"
                if tensor is self.tensor
                else ""
            )
            raise ValueError(
                f"{operation} {self.name!r}: expected a tensor of shape "
                f"{tuple(self.shape)} and type {self.dtype}, as given to win_create, "
                f"got{own} {tuple(value.shape)} and {value.dtype}"
            )
        if self.device is not None and staging_of(value) is staging_of(self.tensor):
            return value
        limit_s = self.timeout_s(operation, timeout_s)
        value = values_on_host(value, operation, limit_s)
        return value if self.device is None else self.as_result(value)

    def put(
        self,
        operation: str,
        source: torch.Tensor,
        targets: list[tuple[int, float]],
        *,
        accumulates: bool,
        timeout_s: float,
        blocking: bool,
        kept: dict[int, Any],
        keep: Any,
    ) -> int:
        """Start a put or accumulate of a value that ``as_value`` has returned.

        Returns:
            Number of the request; 0 if it has ended.
        """
        with_p = self.carries_p

        def submit(
            targets: Sequence[tuple[int, float]], summed: Sequence[int] = ()
        ) -> int:
            return self.native.put(
                source.data_ptr() if self.device is None else 0,
                targets,
                accumulates,
                with_p,
                timeout_s,
                blocking,
                kept,
                keep,
                summed=summed,
            )

        def publish_sum(target: tuple[int, float]) -> bool:
            self.start(
                operation,
                lambda kept, keep: self.native.put(
                    0, [target], True, with_p, timeout_s, True, kept, keep, is_sum=True
                ),
                [],
                timeout_s,
            ).wait()
            return self.native.was_published(target[0])

        if self.device is None:
            return submit(targets)
        if accumulates:
            return self.device.accumulate(
                source, targets, with_p, submit, publish_sum, operation, timeout_s
            )
        return self.device.put(source, targets, submit, operation, timeout_s)

    def get(
        self,
        operation: str,
        sources: list[tuple[int, float]],
        *,
        timeout_s: float,
        blocking: bool,
        kept: dict[int, Any],
        keep: Any,
    ) -> int:
        """Start a get. Returns what ``put`` does.

        Raises:
            ValueError: Values of neighbors cannot be read.
        """
        if self.device is not None and not self.device.slots.has_gets:
            raise ValueError(
                f"win_get {self.name!r}: NCCL has no one-sided gets; use win_put, or "
                "unset BLUECOMM_WINDOWS"
            )

        def submit() -> int:
            return self.native.get(
                sources, self.carries_p, timeout_s, blocking, kept, keep
            )

        if self.device is None:
            return submit()
        return self.device.get(sources, submit, operation, timeout_s)

    def awaits_answers(self, targets: Sequence[tuple[int, float]]) -> bool:
        """Return whether a put must have ended before the next one begins.

        A target on another machine says in its answer which slot is written next.
        """
        return self.device is not None and not all(
            self.native.shares_mailbox(rank) for rank, _ in targets
        )

    def empty_value(self) -> torch.Tensor:
        """Return uninitialized memory of the host for a value."""
        staging = staging_of(self.tensor)
        if staging is None:
            return torch.empty(self.shape, dtype=self.dtype)
        return staging.empty_on_host(self.shape, self.dtype)

    def as_result(self, value: torch.Tensor) -> torch.Tensor:
        """Return a value of the host as a tensor on the device of the window's."""
        staging = staging_of(self.tensor)
        return value if staging is None else staging.to_device(value)

    def regroup(self, weights: Weights) -> None:
        """Use other weights and neighbors from now on, on this rank.

        Needs no communication. A value can be put to a new out-neighbor as soon as that
        rank has regrouped its window, too.
        """
        own = self.as_value(self.tensor, "regroup")
        self.native.connect(
            own.data_ptr(),
            sorted(weights.src_weights or ()),
            sorted(weights.dst_weights or ()),
        )
        self.neighbors.regrouped = weights

    def show(self) -> None:
        """Publish the own value for the neighbors that read it."""
        value = self.as_value(self.tensor, "win_get")
        if self.device is None:
            self.native.publish(value.data_ptr())
        else:
            limit_s = self.timeout_s("win_get", None)
            self.device.publish(value, "win_get", limit_s)

    def settle(self, operation: str, timeout_s: float | None) -> None:
        """Wait until a device uses no memory of the window any more.

        Raises:
            CommunicationTimeout: It has not finished in time.
        """
        if self.device is not None:
            self.device.settle(operation, self.timeout_s(operation, timeout_s))

    def unmap(self) -> None:
        """End the use of neighbors' memory; this rank's remains for them.

        It first waits until the device uses no memory of the window any more.
        """
        if self.device is None:
            return
        # The window ends, so its last result is not needed, even if the work failed.
        with contextlib.suppress(BluecommError, RuntimeError):
            self.settle("win_free", None)
        self.device.slots.unmap()

    def free(self) -> None:
        """Free this rank's memory on a device, which no other rank uses any more."""
        if self.device is not None:
            self.device.slots.free()

    def write(self, value: torch.Tensor) -> None:
        """Set the window's tensor to the value in contiguous memory of the host."""
        if (staging := staging_of(self.tensor)) is not None:
            staging.write(self.tensor, value)
        elif value.data_ptr() != self.tensor.data_ptr():
            with torch.no_grad():
                self.tensor.copy_(value)
        else:
            # Autograd has not seen that the engine wrote to the tensor.
            torch.autograd.graph.increment_version(self.tensor)


def find(operation: str, name: str) -> LiveWindow:
    """Return the window of that name.

    Raises:
        KeyError: No window has that name. The error is a ``ValueError``, too.
    """
    comm = current_communicator()
    comm.world.check_usable()
    comm.world.check_running(operation, name)
    window = comm.windows.get(name)
    if window is None:
        raise UnknownWindowError(
            f"{operation}: there is no window {name!r}; create it with win_create. The "
            f"existing windows are {sorted(comm.windows)}"
        )
    live: LiveWindow = window
    return live
