"""How a reduction combines the ranks' values."""

from __future__ import annotations

import enum

import torch

from bluecomm.ops.tensor import dtype_word

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"]


class ReduceOp(enum.Enum):
    """Reduction over ranks, element by element.

    ``AVERAGE`` divides the sum by the number of ranks, and needs a floating-point
    type. Sums of integers wrap around; of booleans, a sum is *or*, a product *and*.

    ``ADASUM`` is for gradients, in ``allreduce`` only, of a floating-point type::

        adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

    with ``a.b`` the inner product of whole tensors: the sum where they are orthogonal,
    the mean where they are equal, so the learning rate need not fall or grow with the
    number of ranks. Of ``n`` ranks it is the adasum of the adasums of the first ``p``
    and of the others, ``p`` the largest power of two below ``n``: pairs of ranks, pairs
    of pairs, and what is left over joins last. A tensor of zeros changes nothing; NaN
    and infinities spread. Inner products are taken in float64, and the result is
    rounded once. It sends as much as a sum, in three steps instead of two, computes
    ``(n + 1) / 2`` multiplications per element and rank, and needs memory of the size
    of the tensor besides.

    Source:
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys
        2021, arXiv:2006.02924.
    """

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM


def choose(
    operation: str, average: bool | None, op: ReduceOp | None, dtype: torch.dtype
) -> str:
    """Return the engine's word for what ``average`` or ``op`` asks for.

    Without both it is the average.

    Raises:
        TypeError: ``op`` is not a ``ReduceOp``, or the engine does not know the type.
        ValueError: Both are given, or the average or adasum of an integer type is asked
            for, or adasum of another operation than allreduce.
    """
    if op is not None and not isinstance(op, ReduceOp):
        raise TypeError(
            f"{operation}: op must be bluecomm.Sum, Average, Min, Max, Product or "
            f"Adasum, got {op!r}"
        )
    if op is not None and average is not None:
        raise ValueError(f"{operation}: give average or op, not both")
    word: str = "average" if op is None else op.value
    if average is False:
        word = "sum"
    if word in ("average", "adasum") and not dtype.is_floating_point:
        dtype_word(dtype, operation)
        verb = "average" if word == "average" else "take the adasum of"
        raise ValueError(
            f"{operation}: cannot {verb} tensors of type {dtype}, since the result "
            "is no integer; use op=bluecomm.Sum, or convert with .float() first"
        )
    if word == "adasum" and operation != "allreduce":
        raise ValueError(
            f"{operation}: op=bluecomm.Adasum is for allreduce; use Average or Sum"
        )
    return word
