"""Values of a window in memory of a device: how calls move and combine them.

Each call moves values between two steps of the engine's window, whose words, p and
counts are in memory of the host; docs/notes/windows.md has the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from bluecomm.device.point import Point, wait_on_host
from bluecomm.errors import BluecommError
from bluecomm.window.device_slots import DeviceSlots

if TYPE_CHECKING:
    from bluecomm._native import Window

# Neighbors with their weights, in ascending order.
Pairs = Sequence[tuple[int, float]]


class _Left(NamedTuple):
    """The value that an in-neighbor has left.

    Attributes:
        value: The value; ``None`` is zero.
        is_front: Whether it is the front slot, which the neighbor gets back with the
            next value.
    """

    value: torch.Tensor | None
    is_front: bool = False


class DeviceValues:
    """The values of one window of this rank. Thread-safe.

    Args:
        native: The engine's window.
        rank: This rank.
        slots: The slots.
        initial: The value that in-neighbors are taken to have left; ``None`` is zero.
    """

    def __init__(
        self,
        native: Window,
        rank: int,
        slots: DeviceSlots,
        initial: torch.Tensor | None,
    ) -> None:
        self._native = native
        self._rank = rank
        self.slots = slots
        self._staging = slots.staging
        slots.attach(native)
        self._left = {rank: _Left(initial) for rank in native.sources()}
        self._lock = threading.Lock()
        # Points behind copies that the host waits for, or whose end came too late.
        self._copies: list[Point | None] = []
        # The point behind kernels of the last update, which may still read front slots.
        self._readers: Point | None = None

    def publish(self, own: torch.Tensor, operation: str, limit_s: float) -> None:
        """Make ``own`` the value that neighbors read.

        Raises:
            CommunicationTimeout: The device has not finished in time.
            BluecommError: Work that the program has started on the device failed.
        """
        with self._lock:
            self._settle(operation, limit_s)
            self.slots.published(self._native.reserve()).copy_(own)
            self._finish(operation, limit_s)
            self._native.publish(0)

    def put(
        self,
        x: torch.Tensor,
        targets: Pairs,
        submit: Callable[[Pairs], int],
        operation: str,
        limit_s: float,
    ) -> int:
        """Leave a contiguous value, weighted, with targets.

        Args:
            submit: Starts the request ``Window.put``, when the values have arrived.

        Returns:
            What ``submit`` returns.

        Raises:
            As ``publish``.
        """
        with self._lock:
            self._settle(operation, limit_s)
            self._fill(x, targets, operation, limit_s)
            return submit(targets)

    def accumulate(
        self,
        x: torch.Tensor,
        targets: Pairs,
        with_p: bool,
        submit: Callable[[Pairs, Sequence[int]], int],
        publish_sum: Callable[[tuple[int, float]], bool],
        operation: str,
        limit_s: float,
    ) -> int:
        """Add a value to those that are pending at targets; see ``put``.

        Args:
            submit: As for ``put``; it gets the targets at which no value was pending,
                and those that share memory and already have the sum.
            publish_sum: Asks a target on another machine to publish the sum; returns
                whether the value was still pending.
        """
        with self._lock:
            self._settle(operation, limit_s)
            sums = []
            for rank, weight in targets:
                back = self._native.back_slot(rank)
                pending = self._native.pending(rank)
                if back is None or pending is None:
                    continue
                value = self.slots.read_back(rank, pending[1])
                _add(value, x, weight)
                self.slots.write(rank, back, value, operation, limit_s)
                sums.append((rank, weight, pending))
            if sums:
                self._finish(operation, limit_s)
            summed, answered = [], []
            for rank, weight, pending in sums:
                if not self._native.shares_mailbox(rank):
                    if publish_sum((rank, weight)):
                        answered.append(rank)
                elif self._native.publish_sum(rank, *pending, weight, with_p):
                    summed.append(rank)
            have = {*summed, *answered}
            rest = [(rank, weight) for rank, weight in targets if rank not in have]
            self._fill(x, rest, operation, limit_s)
            return submit(rest, summed)

    def get(
        self,
        sources: Pairs,
        submit: Callable[[], int],
        operation: str,
        limit_s: float,
    ) -> int:
        """Read the published values of neighbors, weighted; see ``put``."""
        with self._lock:
            self._settle(operation, limit_s)
            self._await_readers(operation, limit_s)
            got = {}
            for rank, weight in sources:
                slot = self._native.begin_get(rank)
                if slot is not None:
                    got[rank] = _weighted(self.slots.read(rank, slot), weight)
            self._finish(operation, limit_s)
            request = submit()
            for rank, value in got.items():
                self._left[rank] = _Left(value)
            return request

    def update(
        self,
        own: torch.Tensor,
        result: torch.Tensor,
        self_weight: float,
        weights: Pairs,
        *,
        resets: bool,
        with_p: bool,
        keeps: bool,
        operation: str,
        limit_s: float,
    ) -> None:
        """Write the sum that ``Window::update`` describes to a tensor.

        Args:
            own: The own value, contiguous.
            result: Tensor on the device, which may be ``own``.

        Raises:
            As ``publish``.
        """
        with self._lock:
            self._settle(operation, limit_s)
            self._await_readers(operation, limit_s)
            for rank, _ in weights:
                self._take(rank, operation, limit_s)
            terms = [(rank, self._left[rank].value, w) for rank, w in weights]
            terms.append((self._rank, own, self_weight))
            terms.sort(key=lambda term: term[0])
            found = [(value, w) for _, value, w in terms if value is not None]
            if keeps:
                total = self.slots.published(self._native.reserve())
            else:
                total = self._staging.empty(own.shape, own.dtype)
            _combine(found, total)
            result.copy_(total)
            if keeps:
                self._finish(operation, limit_s)
            else:
                self._readers = self._staging.point()
            self._native.update(
                0, 0, self_weight, weights, resets, with_p, keeps, takes=False
            )
            if resets:
                for rank, _ in weights:
                    self._left[rank] = _Left(None)

    def settle(self, operation: str, limit_s: float) -> None:
        """Wait until the device uses no slots of this rank's calls any more."""
        with self._lock:
            self._settle(operation, limit_s)
            self._await_readers(operation, limit_s)

    def _settle(self, operation: str, limit_s: float) -> None:
        """Wait for copies, also those of an earlier call that has timed out."""
        while self._copies:
            if (copy := self._copies[0]) is not None:
                wait_on_host(copy, operation, limit_s)
            del self._copies[0]

    def _await_readers(self, operation: str, limit_s: float) -> None:
        """Wait until front slots may go back to the neighbors."""
        if self._readers is not None:
            wait_on_host(self._readers, operation, limit_s)
            self._readers = None

    def _finish(self, operation: str, limit_s: float) -> None:
        """Wait until the device has done all of the current stream's work."""
        self._copies.append(self._staging.point())
        self._settle(operation, limit_s)

    def _fill(
        self, x: torch.Tensor, targets: Pairs, operation: str, limit_s: float
    ) -> None:
        """Copy a weighted value to the back slots at targets that are not lost."""
        for rank, weight in targets:
            slot = self._native.back_slot(rank)
            if slot is None and not self._native.has_lost(rank):
                raise BluecommError(
                    f"{operation}: an earlier put to rank {rank} has failed, so it is "
                    "not known which slot may be written; make the window again",
                    operation=operation,
                    rank=self._rank,
                    peers=[rank],
                )
            if slot is not None:
                self.slots.write(rank, slot, _weighted(x, weight), operation, limit_s)
        self._finish(operation, limit_s)

    def _take(self, rank: int, operation: str, limit_s: float) -> None:
        """Take the publication of an in-neighbor, if there is one."""
        adds = self._native.next_adds(rank)
        if adds is None or not self.slots.may_take(rank, operation, limit_s):
            return
        left = self._left[rank]
        if adds and left.is_front:
            # The neighbor gets the slot back.
            assert left.value is not None
            left = _Left(left.value.clone())
            self._finish(operation, limit_s)
        adds, slot = self._native.take(rank)
        # The neighbor may have put and published another value in between.
        if not self.slots.may_take(rank, operation, limit_s):
            self._left[rank] = left if adds else _Left(None)
            return
        value = self.slots.mailbox(rank, slot)
        if adds and left.value is not None:
            self._left[rank] = _Left(left.value + value)
        else:
            self._left[rank] = _Left(value, is_front=True)


def _weighted(x: torch.Tensor, weight: float) -> torch.Tensor:
    """Return a tensor times a weight, which is 1 or 0 if elements are integers."""
    if weight == 1.0:
        return x
    return x * weight if x.is_floating_point() else torch.zeros_like(x)


def _add(total: torch.Tensor, x: torch.Tensor, weight: float) -> None:
    """Add a weighted tensor, rounding once. Integers of weight 0 are left out."""
    if x.is_floating_point():
        total.add_(x, alpha=weight)
    elif weight:
        total.add_(x)


def _combine(terms: Sequence[tuple[torch.Tensor, float]], total: torch.Tensor) -> None:
    """Write a weighted sum. Types of 16 bits are added in float32, and rounded once."""
    if not total.is_floating_point():
        total.zero_()
        for value, weight in terms:
            _add(total, value, weight)
        return
    first, weight = terms[0]
    if total.dtype.itemsize > 2:
        wide = torch.mul(first, weight, out=total)
    else:
        wide = first.float().mul_(weight)
    for value, weight in terms[1:]:
        wide.add_(value, alpha=weight)
    if wide is not total:
        total.copy_(wide)
