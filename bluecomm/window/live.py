"""The windows that exist: what each one is, and how its requests are waited for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bluecomm.errors import CommunicationTimeout
from bluecomm.ops.neighbor_weights import Wording, weight_number, weight_pairs
from bluecomm.ops.tensor import as_input
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.communicator import check_timeout
from bluecomm.runtime.failure import OK, failure

if TYPE_CHECKING:
    from bluecomm._native import Window, WindowTicket

# Requests of a window that are over are let go of when so many are kept.
_KEPT = 64


class UnknownWindowError(KeyError, ValueError):
    """There is no window of that name."""

    __str__ = Exception.__str__  # KeyError's own shows the text in quotes


@dataclasses.dataclass(eq=False)
class LiveWindow:
    """One window of this rank.

    Attributes:
        name: Its name.
        comm: The ranks that made it.
        tensor: What was given to ``win_create``; the own value.
        native: The engine's part of it.
        kept: Requests that may be under way, and the memory that they read. Threads
            may change it side by side: it is one object, changed entry by entry.
        has_p: It carries p, whether or not that is turned on for all windows.
        shape: The tensor's shape in ``win_create``.
        dtype: The tensor's type in ``win_create``.
    """

    name: str
    comm: Communicator
    tensor: torch.Tensor
    native: Window
    kept: dict[WindowTicket, torch.Tensor] = dataclasses.field(default_factory=dict)
    has_p: bool = False
    shape: torch.Size = dataclasses.field(init=False)
    dtype: torch.dtype = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.shape, self.dtype = self.tensor.shape, self.tensor.dtype

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

    def keep(self, ticket: WindowTicket, source: torch.Tensor) -> None:
        """Keep memory while a request reads it."""
        self.kept[ticket] = source
        self.let_go_of_old()

    def let_go_of_old(self) -> None:
        """Let go of the memory of requests that are over, if many are kept."""
        if len(self.kept) > _KEPT:
            for ticket in list(self.kept):
                if self.native.done(ticket):
                    self.let_go(ticket)

    def let_go(self, ticket: WindowTicket) -> None:
        """Let go of the memory of a request that is over."""
        self.kept.pop(ticket, None)

    def as_value(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        """Return a tensor as contiguous memory, if it fits the window.

        Raises:
            TypeError: Not a tensor.
            ValueError: Of another shape or type than the window's.
        """
        value, _ = as_input(tensor, operation)
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
        return value

    def show(self) -> None:
        """Show the own value to the neighbors that read it."""
        self.native.publish(self.as_value(self.tensor, "win_get").data_ptr())

    def write(self, value: torch.Tensor) -> None:
        """Make contiguous memory the value of the window's tensor."""
        if value.data_ptr() != self.tensor.data_ptr():
            with torch.no_grad():
                self.tensor.copy_(value)
        else:
            # The engine wrote behind autograd's back: say so.
            torch.autograd.graph.increment_version(self.tensor)

    def weights(
        self, operation: str, argument: str, given: Any, default: dict[int, float]
    ) -> list[tuple[int, float]]:
        """Return neighbors and weights, ascending; those of ``default`` for ``None``.

        Raises:
            TypeError: A rank is not an integer.
            ValueError: A rank is no neighbor, that is, no key of ``default``; a weight
                is no finite number, or not 1 or 0 for elements that are integers.
        """
        if given is None:
            pairs = list(default.items())
        else:
            words = Wording(operation, dst=argument)
            comm = self.comm
            pairs = weight_pairs(words, argument, given, comm.rank, comm.size)
        strangers = sorted({rank for rank, _ in pairs} - default.keys())
        if strangers:
            raise ValueError(
                f"{operation} {self.name!r}: the ranks of {argument} must be neighbors "
                f"of rank {self.comm.rank} in the topology, {sorted(default)}; got "
                f"{strangers}"
            )
        self.check_integers(operation, argument, [weight for _, weight in pairs])
        return sorted(pairs)

    def self_weight(self, operation: str, given: Any) -> float:
        """Return a weight of the own value.

        Raises:
            ValueError: It is no finite number, or not 1 or 0 for integers.
        """
        weight = weight_number(Wording(operation), "self_weight", given)
        self.check_integers(operation, "self_weight", [weight])
        return weight

    def check_integers(
        self, operation: str, argument: str, weights: list[float]
    ) -> None:
        """Raise unless elements of the window's type can be weighted so."""
        if self.dtype.is_floating_point or all(w in (0.0, 1.0) for w in weights):
            return
        raise ValueError(
            f"{operation} {self.name!r}: elements of type {self.dtype} cannot "
            f"be weighted, got {argument} with {weights}; make the window of "
            "tensor.float(), or give weights of 1 or 0"
        )

    @property
    def in_weights(self) -> dict[int, float]:
        """Weight of each in-neighbor in the topology."""
        topology = self.comm.topology
        return dict(topology.weights.src_weights) if topology else {}

    @property
    def out_weights(self) -> dict[int, float]:
        """Weight 1 for each out-neighbor."""
        topology = self.comm.topology
        return dict.fromkeys(topology.weights.dst_ranks, 1.0) if topology else {}


def find(operation: str, name: str) -> LiveWindow:
    """Return the window of that name.

    Raises:
        KeyError: There is none. It is a ``ValueError`` too.
    """
    comm = current_communicator()
    comm.world.check_usable()
    comm.world.check_running(operation, name)
    window = comm.windows.get(name)
    if window is None:
        raise UnknownWindowError(
            f"{operation}: there is no window {name!r}; win_create makes one. There "
            f"are {sorted(comm.windows)}"
        )
    live: LiveWindow = window
    return live


class WindowHandle(Handle[bool]):
    """A request to other ranks that was started and may still be under way.

    Args:
        window: The window it is about.
        operation: Which function started it.
        ticket: The engine's; ``None``: it is over.
        timeout_s: Its deadline.
        finish: Called by ``wait`` when it has gone well.
    """

    __slots__ = ("_finish_request", "_operation", "_ticket", "_timeout_s", "_window")

    def __init__(
        self,
        window: LiveWindow,
        operation: str,
        ticket: WindowTicket | None,
        timeout_s: float,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(window.comm.world, 0, operation, window.name, lambda _: True)
        self._window = window
        self._operation = operation
        self._ticket = ticket
        self._timeout_s = timeout_s
        self._finish_request = finish

    def done(self) -> bool:
        self._fresh()
        return self._ticket is None or self._window.native.done(self._ticket)

    def wait(self, timeout_s: float | None = None) -> bool:
        self._fresh()
        if self._ticket is not None:
            self._wait_for(self._ticket, timeout_s)
        self._finish = None
        self._finish_request()
        return True

    def _wait_for(self, ticket: WindowTicket, timeout_s: float | None) -> None:
        window = self._window
        world = window.comm.world
        limit_s = float("inf") if timeout_s is None else timeout_s
        completion = window.native.wait(ticket, limit_s)
        while completion is None and timeout_s is None:
            # Only for a suspension, which may be over.
            world.check_running(self._operation, window.name)
            completion = window.native.wait(ticket, limit_s)
        if completion is None:
            world.check_running(self._operation, window.name)
            raise CommunicationTimeout(
                f"{self._label()} on rank {world.rank}: not finished within "
                f"{timeout_s:g} s; it goes on, wait for it again",
                operation=self._operation,
                name=window.name,
                rank=world.rank,
                timeout_s=timeout_s,
            )
        window.let_go(ticket)
        if completion.code != OK:
            self._finish = None
            raise failure(
                completion,
                kind=self._operation,
                name=window.name,
                rank=world.rank,
                timeout_s=self._timeout_s,
            )

    def __del__(self) -> None:
        pass  # the window keeps what the request reads
