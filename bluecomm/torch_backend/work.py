"""Work objects: the results of operations that torch has started."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from bluecomm.device.point import Point
from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.errors import CommunicationTimeout
from bluecomm.runtime import Handle
from bluecomm.runtime.completions import let_others_run
from bluecomm.runtime.handle import can_be_waited_for
from bluecomm.torch_backend.compat import hold, release
from bluecomm.torch_backend.flight_record import Entry

_NO_TIMEOUT = datetime.timedelta(0)

# A call that writes so few bytes usually ends within a fraction of this time, if the
# other ranks are not late. To wait for it takes less time than to have another thread
# report its end.
_SOON_NBYTES = 1 << 18
_SOON_S = 1e-3


class GroupWork(dist.Work):
    """One call of torch: the engine's operations that it consists of.

    Args:
        handles: Handles of the operations.
        outputs: Tensors that the operations write, the value of the future.
    """

    def __init__(
        self, handles: Sequence[Handle[None]], outputs: list[torch.Tensor]
    ) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._pending = list(handles)
        self._outputs = outputs
        # Behind the results that have been written on a stream of a device.
        self._points: list[tuple[Staging, Point]] = []
        self._error: BaseException | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._entries: list[Entry] = []
        self._range_end: torch.futures.Future[Any] | None = None
        # Ranks of the group whose messages the call's receives have taken.
        self.senders: list[int] = []
        hold(self)

    def extend(
        self, handles: Sequence[Handle[None]], outputs: list[torch.Tensor]
    ) -> None:
        """Add operations to a call that nobody waits for yet."""
        self._pending += handles
        self._outputs += outputs

    def record(self, entry: Entry) -> None:
        """Let an entry of the flight record note how the call ends."""
        with self._lock:
            self._entries.append(entry)
            has_ended = not self._pending
        if has_ended:
            entry.end(self._error)

    def wait(self, timeout: datetime.timedelta = _NO_TIMEOUT) -> bool:
        """Wait until the call has ended.

        Later work of the current stream of a device sees the results.

        Args:
            timeout: Time to wait at most; 0 for the deadline of the operation.

        Raises:
            BluecommError: The call failed; see the operations of bluecomm.
            CommunicationTimeout: ``timeout`` passed. The call continues.
        """
        release(self, len(self._outputs))
        try:
            self._settle(timeout.total_seconds() if timeout > _NO_TIMEOUT else None)
        finally:
            self._await_range()
        return True

    def synchronize(self) -> None:
        """Wait until the call has ended."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call has ended, well or not."""
        if not all(_has_ended(handle) for handle in list(self._pending)):
            return False
        with contextlib.suppress(Exception):
            self._settle(None)
        self._await_range()
        release(self, len(self._outputs))
        return True

    def is_success(self) -> bool:
        """Return whether the call has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error of a call that has ended."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that the call has written."""
        self._settle(None)
        return self._outputs

    def source_rank(self) -> int:
        """Return the rank of the group from which a receive has its values.

        Raises:
            RuntimeError: The call is not a receive.
        """
        self._settle(None)
        if not self.senders:
            raise RuntimeError("source_rank: the call is not a receive")
        return self.senders[0]

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors that the call writes.

        Waits a moment for a call that ends soon. If the tensors are on a device, each
        stream that is current in a wait for the future sees them, and so do callbacks,
        as with futures of torch's own backends.
        """
        if self._future is None:
            staging = next(iter(self._stagings()), None)
            if staging is None and _nbytes(self._outputs) <= _SOON_NBYTES:
                with contextlib.suppress(Exception):
                    self._settle(_SOON_S)
            if staging is not None or self._pending or self._error is not None:
                # The program may wait for the future in a callback of another one, as
                # torch's hook for PowerSGD does.
                let_others_run()
                ended: torch.futures.Future[None] = (
                    torch.futures.Future() if staging is None else staging.new_future()
                )
                # C++ does not see an error set by set_exception(), but one of a
                # callback.
                self._future = ended.then(lambda _: self.result())
                self._follow(ended)
            else:
                self._future = torch.futures.Future()
                self._future.set_result(self._outputs)
        release(self, len(self._outputs))
        return self._future

    def _stagings(self) -> set[Staging]:
        """Return what copies the results to the devices on which they are."""
        found = (staging_of(tensor) for tensor in self._outputs)
        return {staging for staging in found if staging is not None}

    def ends_with(self, range_end: torch.futures.Future[Any]) -> None:
        """Let nobody find the call ended before its range of the profiler has."""
        self._range_end = range_end

    def _await_range(self) -> None:
        # A profiler that stops while another thread ends a range crashes.
        if self._range_end is not None and not self._pending:
            with contextlib.suppress(Exception):
                self._range_end.wait()

    def _follow(self, ended: torch.futures.Future[None]) -> None:
        """Complete ``ended`` once all operations have ended."""
        for handle in list(self._pending):
            if not _has_ended(handle):
                # It may have ended since, and another thread may have waited for it.
                with contextlib.suppress(ValueError):
                    handle.on_finish(lambda: self._follow(ended))
                    return
        ended.set_result(None)

    def _settle(self, timeout_s: float | None) -> None:
        """Wait for the operations that have not been waited for, and keep the error.

        All operations are waited for even if one of them fails.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._acquire(timeout_s)
        pending = len(self._pending)
        try:
            for staging, written in self._points:
                staging.follow(written)
            while self._pending:
                left = None
                if deadline is not None:
                    left = max(0.0, deadline - time.monotonic())
                try:
                    self._pending[0].wait(left)
                except CommunicationTimeout as error:
                    try:
                        if self._pending[0].done():  # since the timeout
                            continue
                    except ValueError:  # its own deadline has passed
                        self._error = self._error or _named(error)
                    else:
                        raise
                except Exception as error:
                    if can_be_waited_for(self._pending[0]):
                        raise  # a signal handler has raised it
                    self._error = self._error or error
                del self._pending[0]
        finally:
            try:
                if len(self._pending) < pending:
                    self._note_points()
            finally:
                self._lock.release()
        for entry in self._entries:
            entry.end(self._error)
        if self._error is not None:
            raise self._error

    def _note_points(self) -> None:
        """Note what the current streams have been given, such as copies of results."""
        for staging in self._stagings():
            if (point := staging.point()) is not None:
                self._points.append((staging, point))

    def _acquire(self, timeout_s: float | None) -> None:
        """Take the lock, which a thread that waits for the call holds meanwhile.

        Raises:
            CommunicationTimeout: Another thread still waited after ``timeout_s``.
        """
        limit_s = -1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=limit_s):
            what = next(iter(self._pending), "the call")
            raise CommunicationTimeout(
                f"{what}: not finished within {timeout_s:g} s, while another thread "
                "waits for it, too; the operation goes on; wait for it again",
                timeout_s=timeout_s,
            )


def wait_for(handle: Handle[None]) -> None:
    """Wait for the only operation of a call that has no work.

    Raises:
        BluecommError: The operation failed; see the operations of bluecomm.
    """
    try:
        handle.wait()
    except CommunicationTimeout as error:
        _named(error)
        raise


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors)


def _has_ended(handle: Handle[None]) -> bool:
    try:
        return handle.done()
    except ValueError:  # it has been waited for
        return True


def _named(error: CommunicationTimeout) -> CommunicationTimeout:
    """Add the word that torch's tests and users' scripts search texts for."""
    error.args = (f"{error.args[0]} (the timeout of the operation has passed)",)
    return error
