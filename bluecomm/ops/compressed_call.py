"""One call of compressed_allreduce: its values, and the names of its operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from bluecomm.compression import Codec
from bluecomm.device.staging import Staging
from bluecomm.ops.compressed_agreement import CompressedAgreement
from bluecomm.ops.follow_up_name import next_turn
from bluecomm.ops.refusal import Operation
from bluecomm.runtime import Communicator


class CompressedNames(NamedTuple):
    """Names of the operations of one call.

    The threads of a rank may go on with calls of one name in another order than those
    of other ranks. So only the first operations of calls have equal names.

    Attributes:
        first: Name of the first operation.
        rest: Prefix of the names of the others: ``number.operation`` follows, with the
            number of the slice.
    """

    first: str
    rest: str

    @classmethod
    def of_next(cls, comm: Communicator, kind: str, name: str) -> CompressedNames:
        """Return the names of the next call.

        Args:
            comm: Ranks that take part.
            kind: The engine's name of the first operation.
            name: Name of the call.
        """
        first = f"{name}.pieces"
        return cls(first, f"{name}.slices.{next_turn(comm, kind, first)}")

    def of_later_exchange(self) -> CompressedNames:
        """Return the names of an exchange whose first operation follows another one."""
        return self._replace(first=f"{self.rest}.0.pieces")

    def refused(self) -> Iterator[Operation]:
        """Describe the operations that a rank refuses if it starts none on the host.

        The ranks whose first half fails refuse the second one, and so must this rank:
        otherwise the ranks count different numbers of calls of its name.
        """
        yield "alltoall", self.first, None
        yield "allgather", f"{self.rest}.0.results", None


class CompressedCall(NamedTuple):
    """One call of compressed_allreduce.

    Attributes:
        comm: Ranks that take part, at least two.
        source: The values; contiguous.
        staging: Staging of the device to which the result goes; ``None`` if it stays on
            the host.
        codec: The codec.
        names: Names of the operations.
        agreement: Facts of the call.
        slice_numel: Number of values that are exchanged together.
        divisor: Divisor of the sum.
        timeout_s: Deadline of each operation that the caller gave.
    """

    comm: Communicator
    source: torch.Tensor
    staging: Staging | None
    codec: Codec
    names: CompressedNames
    agreement: CompressedAgreement
    slice_numel: int
    divisor: int
    timeout_s: float | None

    def slices_of(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the values of a contiguous tensor that are exchanged together."""
        return torch.split(tensor.view(-1), self.slice_numel)
