"""A compressed_allreduce of a tensor on a device, through NCCL."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from bluecomm.compression import Codec
from bluecomm.compression.device_codes import encodes_there
from bluecomm.device.staging import Staging
from bluecomm.ops.coded_pieces import CodedPieces
from bluecomm.ops.compressed_call import CompressedCall
from bluecomm.ops.nccl_coded_exchange import NcclCodedExchange
from bluecomm.ops.refusal import is_marked, is_mismatch, refuse
from bluecomm.ops.start import start_gather
from bluecomm.runtime import Handle
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import GroupHandle, MappedHandle
from bluecomm.runtime.world import World

# The results of ``encodes_there``, which waits for the device, by codec and device.
_known: weakref.WeakKeyDictionary[World, dict[tuple[str, str], bool]] = (
    weakref.WeakKeyDictionary()
)


def start_through_nccl(
    call: CompressedCall, on_host: Callable[[], Handle[torch.Tensor]]
) -> Handle[torch.Tensor]:
    """Encode the values, exchange heads on the host, and then codes through NCCL.

    Args:
        call: The call, whose values are on the device.
        on_host: Starts the call on the host, because some rank cannot encode on its
            device. Called with the stream of the start as the current stream.

    Returns:
        Handle of the result, on the device.

    Raises:
        RuntimeError: CUDA or a kernel failed. The other ranks are told.
    """
    comm, staging, names = call.comm, call.staging, call.names
    assert staging is not None
    parts = call.slices_of(call.source)
    slices = [
        NcclCodedExchange(
            comm,
            f"{names.rest}.{number}",
            CodedPieces(len(part), call.codec, comm.size, comm.rank),
            staging,
            call.timeout_s,
        )
        for number, part in enumerate(parts)
    ]
    encodes = _encodes(comm.world, call.codec, staging)
    try:
        if encodes:
            for one, part in zip(slices, parts, strict=True):
                one.encode(part)
    except Exception as error:
        refuse(comm, [("allgather", names.first, None)], error)
        raise
    stream = staging.stream_context()
    heads = start_gather(
        comm,
        "allgather",
        torch.cat([torch.tensor([encodes], dtype=torch.uint8), call.agreement.head]),
        name=names.first,
        timeout_s=call.timeout_s,
    )

    def exchange(gathered: tuple[torch.Tensor, list[int]]) -> Handle[torch.Tensor]:
        rows = gathered[0].view(comm.size, -1)
        call.agreement.check(rows[:, 1:])
        if not rows[:, 0].all():
            with stream:
                return on_host()
        started = []
        for number, one in enumerate(slices):
            try:
                started.append(one.exchange(call.divisor))
            except Exception as error:
                for later in slices[number + 1 :]:
                    later.refuse(error)
                raise
        return MappedHandle(GroupHandle(started), take)

    def take(_: object) -> torch.Tensor:
        output = staging.empty(call.source.shape, call.source.dtype)
        for one, into in zip(slices, call.slices_of(output), strict=True):
            one.take_results(into)
        return output

    def give_up(error: Exception) -> None:
        # After a mismatch or a refusal no rank goes on.
        if not is_mismatch(error) and not is_marked(error):
            for one in slices:
                one.refuse(error)

    return ChainedHandle(heads, exchange, on_failure=give_up)


def _encodes(world: World, codec: Codec, staging: Staging) -> bool:
    """Return whether the codec runs on this device; see ``encodes_there``."""
    known = _known.setdefault(world, {})
    key = repr(codec), staging.name
    if key not in known:
        config = world.config
        known[key] = encodes_there(
            codec, staging, config.device_codes, config.operation_timeout_s
        )
    return known[key]
