"""The slots of a window in memory into which neighbors put through NCCL.

docs/notes/windows.md has the states, and docs/notes/nccl-puts.md what NCCL promises.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.point import Point, wait_on_host
from bluecomm.errors import BluecommError, CommunicationTimeout, PeerLostError
from bluecomm.window.device_slots import MAILBOX_SLOTS, slot_at, stride_of

if TYPE_CHECKING:
    from bluecomm._native import NcclLibrary, NcclPuts, Window

# The slot of a mailbox that is written first; see native/window/mailbox.h.
_FIRST_BACK = 1
# How often the host looks whether NCCL has finished.
_POLL_S = 0.0001
# How often the host looks whether a rank is lost meanwhile.
_LOOK_S = 0.01
# NCCL often notices a lost rank before the engine does.
_LOSS_S = 10.0
# How long the end of a communicator may wait for the others, or for the device.
_CLOSE_S = 10.0


class NcclOffer(NamedTuple):
    """A rank's slots, as it offers them to the other ranks.

    Attributes:
        id: NCCL's id, with which all ranks connect; empty on all but the first rank.
        in_neighbors: The ranks that have a mailbox in its memory, ascending.
    """

    id: bytes
    in_neighbors: tuple[int, ...]


class NcclSlots:
    """The slots of one rank's part of a window, and copies of those at its neighbors.

    The memory holds three slots for each in-neighbor, then a copy of each slot of this
    rank's mailbox at an out-neighbor, from which NCCL puts, and then those of the
    published value. The first failure of NCCL ends its communicator: later puts fail,
    and nothing more is taken.

    Args:
        staging: The device.
        library: NCCL, 2.29.2 or newer.
        like: Tensor of the window's shape and type.
        name: Name of the window.
        rank: This rank.
        in_neighbors: Ranks with a mailbox here, ascending.
        out_neighbors: Ranks in whose memory this rank has a mailbox, ascending.

    Raises:
        RuntimeError: The memory cannot be allocated.

    Attributes:
        staging: The device.
        offer: Tells the other ranks how to connect and where to put.
    """

    has_gets = False

    def __init__(
        self,
        staging: CudaStaging,
        library: NcclLibrary,
        like: torch.Tensor,
        name: str,
        rank: int,
        in_neighbors: Sequence[int],
        out_neighbors: Sequence[int],
    ) -> None:
        self.staging = staging
        self._native: Window | None = None
        self._name, self._rank = name, rank
        self._shape, self._dtype, self._nbytes = like.shape, like.dtype, like.nbytes
        self._stride = stride_of(like.nbytes)
        self._sources, self._targets = tuple(in_neighbors), tuple(out_neighbors)
        mailboxes = MAILBOX_SLOTS * (len(in_neighbors) + len(out_neighbors))
        self._published = mailboxes
        slots = mailboxes + len(out_neighbors) + 2
        self._puts: NcclPuts = staging.make_nccl_puts(library, slots * self._stride)
        first = library.make_id() if rank == 0 else b""
        self.offer = NcclOffer(first, self._sources)
        # The position of the first slot of this rank's mailbox at a neighbor.
        self._mailboxes: dict[int, int] = {}
        # How many signals were raised at a target, and awaited from a source.
        self._raised = dict.fromkeys(self._targets, 0)
        self._awaited = dict.fromkeys(self._sources, 0)
        self._failure: _Failure | None = None

    def connect(self, offers: Mapping[int, NcclOffer], limit_s: float) -> None:
        """Connect all ranks, which call it together, and try a put to each neighbor.

        Before NCCL 2.31 the first put of a communicator needs all ranks.

        Raises:
            BluecommError: NCCL or CUDA has failed.
            CommunicationTimeout: A rank has not come in time.
        """
        for rank in self._targets:
            before = offers[rank].in_neighbors.index(self._rank)
            self._mailboxes[rank] = MAILBOX_SLOTS * before
        size = len(offers)
        what = "win_create", limit_s
        self._call(lambda: self._puts.connect(offers[0].id, self._rank, size), *what)
        own = self._at(self._published).fill_(0)
        for rank in self._targets:
            self.write(rank, _FIRST_BACK, own, *what)
        for rank in self._sources:
            self._follow(rank, 1, *what)
        self._await_point(self.staging.point(), *what)

    def attach(self, native: Window) -> None:
        """Set the engine's window, which knows lost ranks and signals."""
        self._native = native

    def mailbox(self, rank: int, slot: int) -> torch.Tensor:
        """Return a slot of the mailbox of an in-neighbor."""
        return self._at(MAILBOX_SLOTS * self._sources.index(rank) + slot)

    def published(self, slot: int) -> torch.Tensor:
        """Return a slot of this rank's own value, which nobody else reads."""
        return self._at(self._published + slot)

    def write(
        self, rank: int, slot: int, value: torch.Tensor, operation: str, limit_s: float
    ) -> None:
        """Put a contiguous value into a slot of this rank's mailbox at a neighbor.

        Waits until NCCL has read it. The next publication there says which signal
        follows the value.

        Raises:
            PeerLostError: A rank is lost.
            BluecommError: NCCL or CUDA has failed.
            CommunicationTimeout: The put has not ended in time.
        """
        copy = self._copy_of(rank, slot)
        self._at(copy).copy_(value)
        source, target = copy * self._stride, self._mailboxes[rank] + slot
        stream = self.staging.current_stream()
        self._raised[rank] += 1
        self._call(
            lambda: self._puts.put(
                rank, source, target * self._stride, self._nbytes, stream
            ),
            operation,
            limit_s,
            rank,
        )
        self._await_point(self._puts.point(), operation, limit_s, rank)
        if self._native is not None:
            self._native.set_signal(rank, self._raised[rank])

    def read_back(self, rank: int, slot: int) -> torch.Tensor:
        """Return a copy of what this rank has written to such a slot."""
        return self._at(self._copy_of(rank, slot)).clone()

    def may_take(self, rank: int, operation: str, limit_s: float) -> bool:
        """Make the current stream wait for what an in-neighbor has published last.

        Returns:
            Whether the value may be taken; not after a failure of NCCL.
        """
        assert self._native is not None
        signal = self._native.next_signal(rank)
        try:
            if signal > self._awaited[rank]:
                self._follow(rank, signal - self._awaited[rank], operation, limit_s)
        except BluecommError:
            return False
        return True

    def read(self, rank: int, slot: int) -> torch.Tensor:
        """Raise ``NotImplementedError``, since there are no gets."""
        raise NotImplementedError

    def unmap(self) -> None:
        """Do nothing: neighbors may put until all ranks have finished."""

    def free(self) -> None:
        """End the communicator, and free the memory; no rank puts any more."""
        try:
            for rank in self._sources:
                # NCCL may still be writing values that this rank has not taken.
                if self.may_take(rank, "win_free", _CLOSE_S):
                    self._await_point(self.staging.point(), "win_free", _CLOSE_S)
            self._call(self._puts.close, "win_free", _CLOSE_S)
        except (BluecommError, RuntimeError):  # of NCCL or CUDA
            pass  # the communicator is aborted, and other ranks notice its end
        self.abort()

    def abort(self) -> None:
        """End the communicator at once, and wait until the device uses no slots."""
        self._puts.abort()
        with contextlib.suppress(BluecommError, RuntimeError):
            for point in (self._puts.point(), self.staging.point()):
                if point is not None:
                    wait_on_host(point, "win_free", _CLOSE_S)

    def _at(self, position: int) -> torch.Tensor:
        address = self._puts.address + position * self._stride
        return slot_at(self.staging, address, self._shape, self._dtype)

    def _copy_of(self, rank: int, slot: int) -> int:
        """Return the position of the copy of a slot at an out-neighbor."""
        before = len(self._sources) + self._targets.index(rank)
        return MAILBOX_SLOTS * before + slot

    def _follow(self, rank: int, count: int, operation: str, limit_s: float) -> None:
        """Make the current stream wait for the next puts of an in-neighbor."""
        self._call(lambda: self._puts.await_puts(rank, count), operation, limit_s, rank)
        self._awaited[rank] += count
        self.staging.follow(self._puts.point())

    def _call(
        self,
        begin: Callable[[], object],
        operation: str,
        limit_s: float,
        peer: int | None = None,
    ) -> None:
        """Begin something, and wait until NCCL has received it."""
        if self._failure is not None:
            raise self._describe(operation, self._failure)
        with self._failing(operation, limit_s):
            begin()
            self._poll(self._puts.advance, limit_s, peer)

    def _await_point(
        self,
        point: Point | None,
        operation: str,
        limit_s: float,
        peer: int | None = None,
    ) -> None:
        """Wait until the device has passed a point, or NCCL has failed."""

        def has_passed() -> bool:
            assert point is not None
            outcome = point.poll()
            if outcome is None:
                self._puts.advance()
                return False
            if outcome.code:
                raise RuntimeError(outcome.text)
            return True

        with self._failing(operation, limit_s):
            self._poll(has_passed, limit_s, peer)

    def _poll(
        self, is_done: Callable[[], bool], limit_s: float, peer: int | None
    ) -> None:
        deadline = time.monotonic() + limit_s
        next_look = time.monotonic()
        while not is_done():
            now = time.monotonic()
            if now >= deadline:
                raise _NotInTime
            if peer is not None and now >= next_look:
                if self._has_lost(peer):
                    raise RuntimeError(f"rank {peer} is lost")
                next_look = now + _LOOK_S
            time.sleep(_POLL_S)

    def _has_lost(self, rank: int) -> bool:
        return self._native is not None and self._native.has_lost(rank)

    @contextlib.contextmanager
    def _failing(self, operation: str, limit_s: float) -> Iterator[None]:
        """End the communicator if the block raises an error of NCCL or CUDA.

        Raises:
            PeerLostError: A neighbor is lost.
            CommunicationTimeout: The block has not ended in time.
            BluecommError: NCCL or CUDA has failed.
        """
        try:
            yield
        except RuntimeError as error:
            self._puts.abort()
            late = isinstance(error, _NotInTime)
            self._failure = _Failure(
                lost=None if late else self._find_lost(),
                text=f"NCCL's put has not ended within {limit_s:g} s"
                if late
                else str(error),
                timeout_s=limit_s if late else None,
            )
            raise self._describe(operation, self._failure) from error

    def _find_lost(self) -> int | None:
        """Return a neighbor that is lost, or turns out to be."""
        if self._native is None:
            return None
        deadline = time.monotonic() + _LOSS_S
        while True:
            for rank in sorted({*self._sources, *self._targets}):
                if self._has_lost(rank):
                    return rank
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_S)

    def _describe(self, operation: str, failure: _Failure) -> BluecommError:
        kind = BluecommError
        if failure.lost is not None:
            kind = PeerLostError
        elif failure.timeout_s is not None:
            kind = CommunicationTimeout
        return kind.describe(
            failure.text
            if failure.lost is None
            else f"rank {failure.lost} is lost, which ends puts through NCCL",
            operation=operation,
            name=self._name,
            rank=self._rank,
            peers=[] if failure.lost is None else [failure.lost],
            timeout_s=failure.timeout_s,
            remedy="Puts of this window fail until win_free and win_create.",
        )


class _Failure(NamedTuple):
    """Why NCCL's communicator has ended.

    Attributes:
        lost: The neighbor that is lost, if one is.
        text: What NCCL or CUDA says.
        timeout_s: The deadline that has passed, if one has.
    """

    lost: int | None
    text: str
    timeout_s: float | None


class _NotInTime(RuntimeError):
    """NCCL has not finished before the deadline."""
