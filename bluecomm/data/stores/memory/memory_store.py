"""A cache in memory that the processes of a machine share."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from bluecomm.data.stores.flat_reader import ALIGNMENT, aligned
from bluecomm.data.stores.flat_value import decode_value, encode_value, nbytes_of
from bluecomm.data.stores.memory.attachment import Attachment
from bluecomm.data.stores.memory.layout import (
    PAGE,
    SLABS,
    CacheLayout,
    create_file,
    open_file,
)
from bluecomm.data.stores.memory.machine import MachineId, machine_id
from bluecomm.data.stores.memory.slabs import class_of
from bluecomm.data.stores.store import MISSING, SampleStore
from bluecomm.data.world import DataWorld, check_same, on_all_ranks

_LEAST_BUDGET = SLABS * 16 * PAGE
# A value's head: its key, and the bytes that follow the head.
_HEAD = struct.Struct("<QQ48x")
# Smaller values are copied, which costs less than to lend them.
_LEAST_LENT_NBYTES = 64 << 10
# After this time a process loads what another one has not finished to load.
_LOADING_LIMIT_S = 60.0


class MemoryStore(SampleStore):
    """One copy of each value per machine, in memory that all processes share.

    Ranks and workers of a ``DataLoader``, forked or spawned, read tensors and arrays of
    64 KiB and more in place, without a copy; smaller ones are copied, which costs less.
    All of them may be written to: a page that is written to becomes the reader's own.

    The memory has no name: nothing is left when all processes have ended, however they
    ended. docs/cache.md has the state machine.

    Args:
        budget: Bytes of the memory on each machine. A value may have 1/64 of it.
        machine: Ranks with different numbers do not share memory, as if they were on
            different machines.

    Raises:
        ValueError: The budget is below 4 MiB.
    """

    def __init__(self, budget: int = 1 << 30, *, machine: int = 0) -> None:
        if budget < _LEAST_BUDGET:
            raise ValueError(
                f"MemoryStore: the budget must be at least {_LEAST_BUDGET} bytes, got "
                f"{budget}"
            )
        self._slab_nbytes = budget // SLABS // PAGE * PAGE
        self._machine = machine
        self._attached: Attachment | None = None
        # Process, descriptor and token, in a process that has received the store.
        self._origin: tuple[int, int, int] | None = None
        self._layout = CacheLayout(self._slab_nbytes, 0)
        self._reset_loading()

    def _reset_loading(self) -> None:
        self._changed = threading.Condition()
        self._loading: set[int] = set()

    def open(self, world: DataWorld, length: int, fingerprint: str) -> None:
        """See ``SampleStore``. Ranks of a machine open each other's descriptors.

        If they may not (``hidepid``, other users), a rank has a cache of its own, and a
        warning says so.
        """
        facts = {
            "length": length,
            "fingerprint": fingerprint,
            "slab": self._slab_nbytes,
        }
        check_same(world, "MemoryStore", facts)
        self._layout = CacheLayout(self._slab_nbytes, length)
        made: list[int] = []

        def make() -> tuple[tuple[int, MachineId], int, int, int]:
            fd, token = create_file(self._layout)
            made.append(fd)
            return (self._machine, machine_id()), os.getpid(), fd, token

        try:
            everyone = on_all_ranks(world, "MemoryStore: making the memory", make)
        except BaseException:
            for fd in made:
                os.close(fd)
            raise
        mine = everyone[world.part[0]]
        fd, token = mine[2:]
        first = next(one for one in everyone if one[0] == mine[0])
        try:
            if first != mine:
                theirs = self._open_or_warn(*first[1:])
                if theirs is not None:
                    os.close(fd)
                    fd, token = theirs, first[3]
        finally:
            # The first one keeps its descriptor until all have opened it.
            world.gather(None, "memory-store-opened")
        self._attach(Attachment(fd, self._layout, token))

    def _open_or_warn(self, pid: int, number: int, token: int) -> int | None:
        try:
            return open_file(pid, number, self._layout, token)
        except OSError as error:
            warnings.warn(
                f"MemoryStore: process {os.getpid()} cannot open the memory of process "
                f"{pid} ({error}) and has a cache of its own",
                stacklevel=4,
            )
            return None

    def _attach(self, attachment: Attachment) -> None:
        self._attached = attachment
        _OPEN.add(self)

    def _attachment(self) -> Attachment:
        """Return what this process holds, which a fork makes first."""
        attached = self._attached
        if attached is not None and attached.pid == os.getpid():
            return attached
        self._reset_loading()
        if attached is not None:
            fd, token = os.dup(attached.fd), attached.token
            # Keeps the row of the parent, whose values this fork has inherited.
            self._inherited = attached
        else:
            fd, token = self._open_origin()
        self._attach(new := Attachment(fd, self._layout, token))
        return new

    def _open_origin(self) -> tuple[int, int]:
        """Open the memory of the process that has sent this store."""
        if self._origin is None:
            raise ValueError("MemoryStore: it is not open; pass it to a CachedDataset")
        fd = self._open_or_warn(*self._origin)
        if fd is None:
            return create_file(self._layout)
        return fd, self._origin[2]

    def get(self, key: int) -> Any:
        """See ``SampleStore``."""
        memory = self.get_flat(key)
        return MISSING if memory is None else decode_value(memory)

    def get_flat(self, key: int) -> memoryview | None:
        """Return the flat bytes of a value, which the caller may write to, or None.

        Raises:
            TimeoutError: A stopped process holds the lock of the table.
        """
        attached = self._attachment()
        with attached.locked(shared=True):
            location = attached.table.find(key)
            if location is None:
                return None
            slab = attached.table.slab_at(location)
            attached.table.pin(slab, 1)
            begin = location + ALIGNMENT
            # Outside of the lock, the pin keeps the value.
        memory = None
        try:
            _, nbytes = _HEAD.unpack(attached.lent.peek(location, ALIGNMENT))
            if nbytes >= _LEAST_LENT_NBYTES:
                with attached.mutex:
                    memory = attached.lent.lend(begin, nbytes)
            return attached.copy(begin, nbytes) if memory is None else memory
        finally:
            # The pin of a lent value ends with its last use.
            if memory is None:
                with attached.mutex:
                    attached.table.pin(slab, -1)

    def has(self, key: int) -> bool:
        """Return whether there is a value of a key."""
        attached = self._attachment()
        with attached.locked(shared=True):
            return attached.table.find(key) is not None

    def put(self, key: int, value: Any, cost_s: float) -> None:
        """See ``SampleStore``."""
        self.put_flat(key, encode_value(value), cost_s)

    def put_flat(self, key: int, parts: list[Any], cost_s: float) -> None:
        """Keep the flat bytes of a value, as ``put`` does.

        Args:
            key: Its key.
            parts: Buffers that follow each other.
            cost_s: Seconds that it took to load it. Values of cost 0 are worth least.
        """
        attached = self._attachment()
        nbytes = nbytes_of(parts)
        total = self.check_size(nbytes)
        table = attached.table
        with attached.locked():
            if table.find(key) is not None:
                return
            location = table.reserve(
                total,
                class_of(cost_s, total),
                paged=nbytes >= _LEAST_LENT_NBYTES,
            )
        if location is None:
            return
        try:
            at = self._layout.values_byte + location
            # Without memory this fails, where a store into a mapping would kill.
            os.posix_fallocate(attached.fd, at, total)
            _write_all(attached.fd, [_HEAD.pack(key, nbytes), *parts], at)
            with attached.locked():
                table.publish(key, location)
        finally:
            with attached.mutex:
                table.pin(table.slab_at(location), -1)

    def check_size(self, nbytes: int) -> int:
        """Return the bytes that a value takes.

        Args:
            nbytes: Its flat bytes.

        Raises:
            ValueError: They are more than a value may have.
        """
        total = aligned(ALIGNMENT + nbytes)
        if total > self._slab_nbytes:
            raise ValueError(
                f"a value of {total} bytes exceeds 1/{SLABS} of the budget, which "
                f"is {self._slab_nbytes} bytes; raise the budget"
            )
        return total

    @contextlib.contextmanager
    def loading(self, key: int) -> Iterator[None]:
        """See ``SampleStore``. After a minute, several processes may load one key."""
        attached = self._attachment()
        with self._changed:
            self._changed.wait_for(lambda: key not in self._loading, _LOADING_LIMIT_S)
            is_first = key not in self._loading
            self._loading.add(key)
        is_locked = is_first and attached.lock_key(key, _LOADING_LIMIT_S)
        try:
            yield
        finally:
            if is_locked:
                attached.unlock_key(key)
            if is_first:
                with self._changed:
                    self._loading.discard(key)
                    self._changed.notify_all()

    def nbytes_used(self) -> int:
        """Return the bytes of the budget that hold values."""
        attached = self._attachment()
        with attached.locked(shared=True):
            return attached.table.nbytes_used()

    def close(self) -> None:
        """See ``SampleStore``. Samples that are in use must not be used any more."""
        if self._attached is not None and self._attached.pid == os.getpid():
            self._attached.close()
        self._attached = None
        self._origin = None

    def __getstate__(self) -> dict[str, Any]:
        """Name the shared memory for a process that is started by this one."""
        attached = self._attachment()
        return {
            "_slab_nbytes": self._slab_nbytes,
            "_machine": self._machine,
            "_layout": self._layout,
            "_attached": None,
            "_origin": (os.getpid(), attached.fd, attached.token),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the shared memory later, at the first use."""
        self.__dict__.update(state)
        self._reset_loading()


def _write_all(fd: int, parts: list[Any], at: int) -> None:
    """Write buffers one after the other, also if the kernel takes only a part."""
    views = [memoryview(part).cast("B") for part in parts if len(memoryview(part))]
    while views:
        written = os.pwritev(fd, views, at)
        at += written
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]


_OPEN: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _pin_for_fork() -> None:
    for store in list(_OPEN):
        attached = store._attached
        if attached is not None and attached.pid == os.getpid():
            attached.pin_for_fork()


def _free_locks_in_fork() -> None:
    """Close the descriptors of the parent's locks, which must end with the parent."""
    for store in list(_OPEN):
        if store._attached is not None:
            store._attached.locks.close()


os.register_at_fork(before=_pin_for_fork, after_in_child=_free_locks_in_fork)
