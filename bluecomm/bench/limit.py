"""The limit: the least cost of an operation on these machines, without an engine.

On one machine: loops over shared memory (``native/bench``). Between machines: one plain
TCP stream from each rank to the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import time
from collections.abc import Iterator

import torch

from bluecomm import allgather_object, barrier, rank, size
from bluecomm.bench._raw_memory import RawMemory
from bluecomm.bench.operations import Case, bus_bytes, exchange_of
from bluecomm.bench.peer_calls import zeros
from bluecomm.bench.results import LIMIT
from bluecomm.bench.timing import Turn, timed
from bluecomm.runtime import current_communicator

_CONNECT_LIMIT_S = 30.0
_STREAM_LIMIT_S = 120.0


class MemoryLimit:
    """Runs operations as bare loops over arrays that all ranks map.

    Works only on one machine.

    Args:
        nbytes: Size of the largest case.

    Raises:
        OSError: A rank cannot map the others' memory; raised on all ranks.
    """

    name = LIMIT

    def __init__(self, nbytes: int) -> None:
        with _common_file(RawMemory.file_nbytes(size(), nbytes)) as fd:
            self._memory = RawMemory(fd, rank(), size(), nbytes)
        self._nbytes = nbytes

    def array(self, dtype: torch.dtype) -> torch.Tensor:
        """Return this rank's array, which others read; for tests. Does not own it."""
        pointer = ctypes.c_byte * self._nbytes
        memory = pointer.from_address(self._memory.array_address)
        return torch.frombuffer(memory, dtype=dtype)

    def prepare(self, case: Case) -> Turn | None:
        """Return the turn that measures a case; see ``Implementation``."""
        kind = case.operation.kind
        if kind in ("allreduce", "compressed_allreduce"):
            return self._allreduce(case)
        if kind in ("neighbor_allreduce", "one_peer", "pair_gossip"):
            return self._combine(case)
        if kind in ("allgather", "alltoall", "broadcast"):
            return self._gather(case)
        if case.operation.is_one_sided:
            output, source = zeros(case), zeros(case)
            return timed(lambda: output.copy_(source))
        return None

    def _allreduce(self, case: Case) -> Turn:
        dtype = case.dtype_name

        def turn(repeats: int) -> float:
            barrier()
            return self._memory.allreduce(case.nbytes, dtype, repeats=repeats)

        return turn

    def _combine(self, case: Case) -> Turn:
        """Return the turn of one pass that reads all arrays and writes the result."""
        exchange = exchange_of(case.operation.kind, rank(), size())
        # A last rank without a partner copies, and takes part in the barriers.
        sources = [(rank(), 1.0)]
        if exchange is not None:
            sources = sorted(
                [(rank(), exchange.self_weight), *exchange.sources.items()]
            )
        output = zeros(case)

        def turn(repeats: int) -> float:
            barrier()
            return self._memory.combine(
                output.data_ptr(),
                case.nbytes,
                sources,
                case.dtype_name,
                repeats=repeats,
            )

        return turn

    def _gather(self, case: Case) -> Turn:
        block, everyone = case.nbytes // size(), range(size())
        if case.operation.kind == "allgather":
            published = largest = block
            pieces = [(source, 0, block) for source in everyone]
        elif case.operation.kind == "alltoall":
            published = largest = case.nbytes
            pieces = [(source, rank() * block, block) for source in everyone]
        else:
            largest = case.nbytes
            published = largest if rank() == 0 else 0
            pieces = [] if rank() == 0 else [(0, 0, largest)]
        output = zeros(case)
        nbytes = sum(piece[2] for piece in pieces)

        def turn(repeats: int) -> float:
            barrier()
            return self._memory.gather(
                output.data_ptr(), nbytes, pieces, published, largest, repeats=repeats
            )

        return turn


@contextlib.contextmanager
def _common_file(nbytes: int) -> Iterator[int]:
    """Open rank 0's file in memory, which the others find through ``/proc``."""
    fd, found = -1, ""
    if rank() == 0:
        fd = os.memfd_create("bluecomm-bench", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        found = f"/proc/{os.getpid()}/fd/{fd}"
    path = allgather_object(found)[0]
    failure = ""
    try:
        if rank() != 0:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        failure = f"rank {rank()}: {error}"
    try:
        failures = [text for text in allgather_object(failure) if text]
        if failures:
            raise OSError(f"cannot map the memory of rank 0: {failures[0]}")
        yield fd
        barrier()  # keeps the file open until all ranks have mapped it
    finally:
        if fd >= 0:
            os.close(fd)


class StreamLimit:
    """Sends on one plain TCP stream from each rank to the next, all at once.

    The time of an operation is that of the bytes that must pass a rank's link (see
    ``bus_bandwidth``). Needs one rank per machine.
    """

    name = LIMIT

    def __init__(self) -> None:
        self._next, self._previous = _connect_ring()

    def close(self) -> None:
        """Close the connections."""
        self._next.close()
        self._previous.close()

    def prepare(self, case: Case) -> Turn | None:
        """Return the turn that measures a case; see ``Implementation``."""
        layout = current_communicator().layout.machine_of
        nbytes = max(1, round(bus_bytes(case.operation, case.nbytes, layout)))
        outgoing = memoryview(bytearray(nbytes))
        incoming = memoryview(bytearray(nbytes))
        return timed(lambda: self._shift(outgoing, incoming))

    def _shift(self, outgoing: memoryview, incoming: memoryview) -> None:
        """Send to the next rank while receiving the same amount from the previous one.

        Raises:
            ConnectionError: The previous rank has closed its connection.
            TimeoutError: No byte moved before the deadline.
        """
        deadline = time.monotonic() + _STREAM_LIMIT_S
        sent = received = 0
        while sent < len(outgoing) or received < len(incoming):
            readable, writable, _ = select.select(
                [self._previous] if received < len(incoming) else [],
                [self._next] if sent < len(outgoing) else [],
                [],
                max(0.0, deadline - time.monotonic()),
            )
            if writable:
                sent += self._next.send(outgoing[sent:])
            if readable:
                arrived = self._previous.recv_into(incoming[received:])
                if arrived == 0:
                    raise ConnectionError(
                        f"rank {(rank() - 1) % size()} closed its stream to {rank()}"
                    )
                received += arrived
            if not readable and not writable:
                raise TimeoutError(
                    f"rank {rank()} received {received} of {len(incoming)} bytes from "
                    f"rank {(rank() - 1) % size()} within {_STREAM_LIMIT_S:g} s"
                )


def _connect_ring() -> tuple[socket.socket, socket.socket]:
    """Return connections to the next and from the previous rank, non-blocking."""
    address = current_communicator().world.assignment.addresses[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen(1)
        listener.settimeout(_CONNECT_LIMIT_S)
        ends = allgather_object((address, listener.getsockname()[1]))
        following = socket.create_connection(
            ends[(rank() + 1) % size()], timeout=_CONNECT_LIMIT_S
        )
        previous, _ = listener.accept()
    for connection in (following, previous):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
    return following, previous
