"""A compressed_allreduce of a tensor on a device, through NCCL."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch

from bluecomm.compression import Codec
from bluecomm.compression.device_codes import encodes_there
from bluecomm.device.staging import Staging
from bluecomm.errors import MismatchError
from bluecomm.ops.nccl_coded_exchange import NcclCodedExchange
from bluecomm.ops.refusal import is_marked, refuse
from bluecomm.ops.start import start_gather
from bluecomm.runtime import Communicator, Handle
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import GroupHandle, MappedHandle
from bluecomm.runtime.world import World

# The results of ``encodes_there``, which waits for the device, by codec and device.
_known: weakref.WeakKeyDictionary[World, dict[tuple[str, str], bool]] = (
    weakref.WeakKeyDictionary()
)


class CompressedCall(NamedTuple):
    """One call of compressed_allreduce on a device.

    Attributes:
        comm: Ranks that take part.
        staging: Staging of the device.
        source: The values; contiguous.
        codec: The codec.
        name: Name of the first operation.
        rest: Prefix of the names of the others; see ``CodedExchange``.
        slice_numel: Number of values that are exchanged together.
        divisor: Divisor of the sum.
        timeout_s: Deadline of each operation that the caller gave.
    """

    comm: Communicator
    staging: Staging
    source: torch.Tensor
    codec: Codec
    name: str
    rest: str
    slice_numel: int
    divisor: int
    timeout_s: float | None

    def start(
        self,
        head: torch.Tensor,
        check: Callable[[torch.Tensor], None],
        on_host: Callable[[], Handle[torch.Tensor]],
    ) -> Handle[torch.Tensor]:
        """Encode the values, exchange heads on the host, and then codes through NCCL.

        Args:
            head: The facts on which ranks must agree; ``torch.uint8``.
            check: Takes the heads of all ranks. Raises on all ranks unless they agree.
            on_host: Starts the call on the host, because some rank cannot encode on its
                device. Called with the stream of the start as the current stream.

        Returns:
            Handle of the result, on the device.

        Raises:
            RuntimeError: CUDA or a kernel failed. The other ranks are told.
        """
        comm, staging = self.comm, self.staging
        parts = torch.split(self.source.view(-1), self.slice_numel)
        slices = [
            NcclCodedExchange(
                comm,
                f"{self.rest}.{number}",
                len(part),
                self.codec,
                staging,
                timeout_s=self.timeout_s,
            )
            for number, part in enumerate(parts)
        ]
        encodes = self._encodes()
        try:
            if encodes:
                for one, part in zip(slices, parts, strict=True):
                    one.encode(part)
        except Exception as error:
            refuse(comm, [("allgather", self.name, None)], error)
            raise
        stream = staging.stream_context()
        heads = start_gather(
            comm,
            "allgather",
            torch.cat([torch.tensor([encodes], dtype=torch.uint8), head]),
            name=self.name,
            timeout_s=self.timeout_s,
        )

        def exchange(gathered: tuple[torch.Tensor, list[int]]) -> Handle[torch.Tensor]:
            rows = gathered[0].view(comm.size, -1)
            check(rows[:, 1:])
            if not rows[:, 0].all():
                with stream:
                    return on_host()
            started = []
            for number, one in enumerate(slices):
                try:
                    started.append(one.exchange(self.divisor))
                except Exception as error:
                    for later in slices[number + 1 :]:
                        later.refuse(error)
                    raise
            return MappedHandle(GroupHandle(started), take)

        def take(_: object) -> torch.Tensor:
            output = staging.empty(self.source.shape, self.source.dtype)
            results = torch.split(output.view(-1), self.slice_numel)
            for one, into in zip(slices, results, strict=True):
                one.take_results(into)
            return output

        def give_up(error: Exception) -> None:
            # After a mismatch or a refusal no rank goes on.
            if not isinstance(error, MismatchError) and not is_marked(error):
                for one in slices:
                    one.refuse(error)

        return ChainedHandle(heads, exchange, on_failure=give_up)

    def _encodes(self) -> bool:
        """Return whether the codec runs on this device; see ``encodes_there``."""
        world, codec, staging = self.comm.world, self.codec, self.staging
        known = _known.setdefault(world, {})
        key = repr(codec), staging.name
        if key not in known:
            config = world.config
            known[key] = encodes_there(
                codec, staging, config.device_codes, config.operation_timeout_s
            )
        return known[key]
