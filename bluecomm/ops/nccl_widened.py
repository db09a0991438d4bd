"""Reductions of integers of 16 bits through NCCL, which lacks these types.

NCCL carries them out in 32 bits. Sums and products there have the same lower bits.
"""

from __future__ import annotations

import torch

from bluecomm.ops.device_operation import DeviceOperation
from bluecomm.ops.nccl_call import NcclWork
from bluecomm.ops.nccl_epilogue import WorkWithEpilogue

# Types that are widened.
WIDENED = frozenset({"int16", "uint16"})


def widened(narrow: DeviceOperation) -> DeviceOperation:
    """Return the same reduction in 32 bits, with tensors of its own."""
    return narrow._replace(
        dtype="int32",
        source=narrow.source.to(torch.int32),
        result=narrow.staging.empty(narrow.result.shape, torch.int32),
    )


def narrowed(
    narrow: DeviceOperation, wide: DeviceOperation, work: NcclWork
) -> NcclWork:
    """Return the work of a reduction in 16 bits.

    Args:
        narrow: The reduction.
        wide: The same in 32 bits; see ``widened``.
        work: The work of ``wide``.
    """
    # copy_lower_bits() does not refer to the input in 16 bits, so it may be freed.
    result, wide_result = narrow.result, wide.result
    has_result = narrow.kind != "reduce" or narrow.comm.rank == narrow.parameters.root

    def copy_lower_bits() -> None:
        if has_result:
            result.copy_(wide_result)

    return WorkWithEpilogue(work, copy_lower_bits)
