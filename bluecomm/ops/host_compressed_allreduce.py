"""A compressed_allreduce whose values are on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from bluecomm.ops.coded_exchange import CodedExchange
from bluecomm.ops.coded_pieces import CodedPieces
from bluecomm.ops.compressed_agreement import HEAD_NBYTES
from bluecomm.ops.compressed_call import CompressedCall
from bluecomm.ops.forms import Form
from bluecomm.ops.refusal import is_mismatch, refuse
from bluecomm.ops.tensor import new_output
from bluecomm.runtime import Handle
from bluecomm.runtime.chained_handle import ChainedHandle
from bluecomm.runtime.handle import GroupHandle, MappedHandle


class _Slice(NamedTuple):
    """Some of the values, and where their result goes."""

    exchange: CodedExchange
    values: torch.Tensor
    into: torch.Tensor


def start_on_host(call: CompressedCall, form: Form) -> Handle[torch.Tensor]:
    """Start a call whose values are on the host.

    Args:
        call: The call.
        form: How the operation was called.
    """
    staging, source = call.staging, call.source
    if staging is None:
        output = new_output(source)
    else:
        output = staging.empty_on_host(source.shape, source.dtype)
    parts = zip(*map(call.slices_of, (source, output)), strict=True)
    slices = [
        _Slice(_exchange(call, number, len(part)), part, into)
        for number, (part, into) in enumerate(parts)
    ]
    return MappedHandle(
        _start_slices(call, slices, form),
        lambda _: output if staging is None else staging.to_device(output),
    )


def _exchange(call: CompressedCall, number: int, numel: int) -> CodedExchange:
    """Return the exchange of one slice; that of the first one has heads."""
    comm, names = call.comm, call.names
    head_nbytes = 0 if number else HEAD_NBYTES
    return CodedExchange(
        comm,
        f"{names.rest}.{number}",
        CodedPieces(numel, call.codec, comm.size, comm.rank, head_nbytes),
        first_name=None if number else names.first,
    )


def _start_slices(
    call: CompressedCall, slices: Sequence[_Slice], form: Form
) -> Handle[list[int]]:
    """Start the exchange of the first slice, and those of the others if ranks agree.

    If a later slice cannot be encoded, this rank still sends its codes of the first
    one. Only once all ranks are known to agree on the number of slices can it refuse
    all that the other ranks start.
    """
    first, *others = slices
    nothing = torch.empty(0, dtype=torch.uint8)
    started: list[Handle[int]] = []
    failures: list[Exception] = []
    goes_on = False

    def start_others(heads: torch.Tensor) -> int:
        nonlocal goes_on
        call.agreement.check(heads)
        goes_on = True
        for error in failures:
            left_out = [first.exchange.second_operation]
            for one in others:
                left_out += one.exchange.refused()
            refuse(call.comm, left_out, error)
            raise error
        for one in others:
            started.append(
                one.exchange.start(
                    nothing,
                    lambda _: call.divisor,
                    one.into,
                    timeout_s=call.timeout_s,
                    follows=True,
                )
            )
        return call.divisor

    def encode_others() -> None:
        try:
            for one in others:
                one.exchange.encode(one.values)
        except Exception as error:
            failures.append(error)

    def give_up(error: Exception) -> None:
        # The others may have finished the half that has failed here. After a mismatch
        # they have not, and may not even agree on the number of slices.
        if goes_on or is_mismatch(error):
            return
        for one in others:
            refuse(call.comm, one.exchange.refused(), error)

    first.exchange.encode(first.values)
    handle = first.exchange.start(
        *(call.agreement.head, start_others, first.into, form, call.timeout_s),
        encode_others,
    )
    return ChainedHandle(
        handle,
        lambda _: GroupHandle(started),
        on_failure=give_up,
        in_background=not form.blocking,
    )
