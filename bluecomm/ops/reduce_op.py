"""How a reduction combines the ranks' values."""

from __future__ import annotations

import enum

import torch

from bluecomm.ops.tensor import dtype_word


class ReduceOp(enum.Enum):
    """Reduction over ranks, element by element.

    ``AVERAGE`` divides the sum by the number of ranks, and needs a floating-point
    type. Sums of integers wrap around; of booleans, a sum is *or*, a product *and*.
    """

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


def choose(
    operation: str, average: bool | None, op: ReduceOp | None, dtype: torch.dtype
) -> str:
    """Return the engine's word for what ``average`` or ``op`` asks for.

    Without both it is the average.

    Raises:
        TypeError: ``op`` is not a ``ReduceOp``, or the engine does not know the type.
        ValueError: Both are given, or the average of an integer type is asked for.
    """
    if op is not None and not isinstance(op, ReduceOp):
        raise TypeError(
            f"{operation}: op must be bluecomm.Sum, Average, Min, Max or Product, "
            f"got {op!r}"
        )
    if op is not None and average is not None:
        raise ValueError(f"{operation}: give average or op, not both")
    word: str = "average" if op is None else op.value
    if average is False:
        word = "sum"
    if word == "average" and not dtype.is_floating_point:
        dtype_word(dtype, operation)
        raise ValueError(
            f"{operation}: cannot average tensors of type {dtype}, since the result "
            "is no integer; use op=bluecomm.Sum, or convert with .float() first"
        )
    return word
