"""One rank of the MPI world that ``ops`` measures; ``mpirun`` starts it.

It receives commands over a Unix socket, and sleeps in a read from it while others have
their turns.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

import torch

from bluecomm.bench.operations import OPERATIONS, Case, Neighborhood, weighted_sum
from bluecomm.bench.peer_calls import PeerCalls, Prepared, zeros
from bluecomm.bench.timing import Call

# MPI has no arithmetic on half-precision types; it sends them as bytes.
_REDUCIBLE = {
    torch.uint8: "UINT8_T",
    torch.int8: "INT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
}


def can_measure(case: Case) -> bool:
    """Return whether MPI has the operation for the case's type."""
    kind = case.operation.kind
    if case.operation.is_one_sided:
        return False
    return not kind.startswith("hierarchical") and (
        kind not in ("allreduce", "compressed_allreduce") or case.dtype in _REDUCIBLE
    )


class MpiOperations(PeerCalls):
    """Builds the calls with mpi4py, on ordinary tensors."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        super().__init__(self._comm.Get_rank(), self._comm.Get_size())

    def _bytes(self, tensor: torch.Tensor) -> Any:
        return [tensor.view(torch.uint8).numpy(), self._mpi.BYTE]

    def _numbers(self, tensor: torch.Tensor) -> Any:
        return [tensor.numpy(), getattr(self._mpi, _REDUCIBLE[tensor.dtype])]

    def _allreduce(self, case: Case) -> Prepared:
        tensor = zeros(case)
        if case.operation.in_place:
            own, output = self._mpi.IN_PLACE, self._numbers(tensor)
        else:
            own, output = self._numbers(tensor), self._numbers(zeros(case))
        return tensor, lambda: self._comm.Allreduce(own, output, op=self._mpi.SUM)

    # The peer sends values as they are.
    _compressed_allreduce = _allreduce

    def _exchange(
        self, tensor: torch.Tensor, exchange: Neighborhood, output: torch.Tensor
    ) -> Call:
        received = [torch.empty_like(tensor).fill_(0) for _ in exchange.sources]
        incoming = [self._bytes(memory) for memory in received]
        own = self._bytes(tensor)

        def call() -> None:
            requests = [
                self._comm.Irecv(memory, source=source)
                for memory, source in zip(incoming, exchange.sources, strict=True)
            ]
            requests += [self._comm.Isend(own, dest=to) for to in exchange.destinations]
            self._mpi.Request.Waitall(requests)
            weighted_sum(tensor, received, exchange, output)

        return call

    def _allgather(self, case: Case) -> Prepared:
        tensor = zeros(case, self._size)
        own, output = self._bytes(tensor), self._bytes(zeros(case))
        return tensor, lambda: self._comm.Allgather(own, output)

    def _broadcast(self, case: Case) -> Prepared:
        tensor = zeros(case)
        own = self._bytes(tensor)
        return tensor, lambda: self._comm.Bcast(own, root=0)

    def _alltoall(self, case: Case) -> Prepared:
        tensor = zeros(case)
        own, output = self._bytes(tensor), self._bytes(zeros(case))
        return tensor, lambda: self._comm.Alltoall(own, output)


def main(path: str) -> None:
    """Execute the commands from the socket at ``path`` until it is closed."""
    from mpi4py import MPI

    torch.set_num_threads(1)
    operations = MpiOperations(MPI)
    comm = MPI.COMM_WORLD
    call: Call = lambda: None  # noqa: E731
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rw") as lines:

            def answer(content: Any) -> None:
                lines.write(json.dumps(content) + "\n")
                lines.flush()

            answer({"size": comm.Get_size(), "version": MPI.Get_library_version()})
            for line in lines:
                command = json.loads(line)
                if "repeats" in command:
                    answer(_seconds_each(comm, call, command["repeats"]))
                else:
                    operation = OPERATIONS[command["operation"]]
                    dtype = getattr(torch, command["dtype"])
                    count, is_written = command["count"], command["is_written"]
                    case = Case(operation, dtype, count, is_written)
                    call = operations.call_for(case)
                    answer("ready")


def _seconds_each(comm: Any, call: Call, repeats: int) -> float:
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    main(sys.argv[1])
