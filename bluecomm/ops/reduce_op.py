"""How a reduction combines the ranks' values."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING

import torch

from bluecomm.ops.tensor import dtype_word
from bluecomm.runtime import parameters

if TYPE_CHECKING:
    from bluecomm._native import Parameters

__all__ = [
    "Adasum",
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
]


class ReduceOp(enum.Enum):
    """Reduction over ranks, element by element.

    ``AVERAGE`` divides the sum by the number of ranks, and needs a floating-point type.
    Sums of integers wrap around. The sum of booleans is their *or*, the product their
    *and*. ``BIT_AND``, ``BIT_OR`` and ``BIT_XOR`` are for integers and booleans.
    Complex numbers have the sum and the average.

    ``ADASUM`` is for gradients of a floating-point type, and only ``allreduce`` has
    it::

        adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

    Here ``a.b`` is the inner product of whole tensors. Adasum is the sum of orthogonal
    tensors and the mean of equal ones, so the learning rate need not change with the
    number of ranks. With ``p`` the largest power of two below ``n``, the adasum of
    ``n`` ranks is the adasum of two values: the adasum of the first ``p`` ranks, and
    that of the others. A tensor of zeros does not change the result; NaN and infinities
    spread. Inner products are computed in float64, and the result is rounded once.
    Adasum sends as many bytes as a sum, in three steps instead of two. It computes
    ``(n + 1) / 2`` multiplications per element and rank, and needs additional memory of
    the size of the tensor.

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
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM
BitAnd = ReduceOp.BIT_AND
BitOr = ReduceOp.BIT_OR
BitXor = ReduceOp.BIT_XOR

_BITWISE = frozenset({"bit_and", "bit_or", "bit_xor"})
_OF_COMPLEX = frozenset({"average", "sum"})


def choose(
    operation: str, average: bool | None, op: ReduceOp | None, dtype: torch.dtype
) -> str:
    """Return the engine's name of the reduction that ``average`` or ``op`` selects.

    The default is the average.

    Raises:
        TypeError: ``op`` is not a ``ReduceOp``, or the engine does not know the type.
        ValueError: Both are given; the average or adasum of an integer type is
            requested; or adasum is requested of an operation other than allreduce.
    """
    if op is not None and not isinstance(op, ReduceOp):
        raise TypeError(
            f"{operation}: op must be bluecomm.Sum, Average, Min, Max, Product or "
            f"Adasum, got {op!r}"
        )
    if op is not None and average is not None:
        raise ValueError(f"{operation}: pass either average or op, not both")
    word: str = "average" if op is None else op.value
    if average is False:
        word = "sum"
    if dtype.is_complex and word not in _OF_COMPLEX:
        raise ValueError(
            f"{operation}: complex numbers have only op=bluecomm.Sum and Average, got "
            f"{word}"
        )
    if word in _BITWISE and dtype.is_floating_point:
        raise ValueError(
            f"{operation}: op={word} is for integers and booleans, got {dtype}"
        )
    can_scale = dtype.is_floating_point or dtype.is_complex
    if word in ("average", "adasum") and not can_scale:
        dtype_word(dtype, operation)
        verb = "average" if word == "average" else "take the adasum of"
        raise ValueError(
            f"{operation}: cannot {verb} tensors of type {dtype}, because the result "
            "is not an integer; use op=bluecomm.Sum, or convert with .float() first"
        )
    if word == "adasum" and operation != "allreduce":
        raise ValueError(
            f"{operation}: op=bluecomm.Adasum is for allreduce; use Average or Sum"
        )
    return word


def check_factors(
    operation: str, dtype: torch.dtype, prescale: float, postscale: float
) -> None:
    """Raise if a factor is requested for a type that cannot be scaled.

    Raises:
        ValueError: A factor is not 1, and the type is not a floating-point type.
    """
    can_scale = dtype.is_floating_point or dtype.is_complex
    if not (can_scale or prescale == postscale == 1.0):
        raise ValueError(
            f"{operation}: factors need a floating-point type, got {dtype}; "
            "convert with .float() first"
        )


# Calls repeat, and a lookup takes less time than the checks.
@functools.lru_cache(maxsize=256)
def reduction(
    operation: str,
    average: bool | None,
    op: ReduceOp | None,
    dtype: torch.dtype,
    prescale: float,
    postscale: float,
    is_local: bool = False,
    splits: tuple[int, ...] = (),
) -> tuple[str, Parameters]:
    """Return the engine's name of a reduction, and the parameters of a call with it.

    Raises:
        TypeError: See ``choose``.
        ValueError: See ``choose`` and ``check_factors``.
    """
    word = choose(operation, average, op, dtype)
    dtype_word(dtype, operation)
    check_factors(operation, dtype, prescale, postscale)
    return word, reduction_parameters(word, prescale, postscale, is_local, splits)


# A lookup by position takes less time than one by keyword.
@functools.lru_cache(maxsize=64)
def reduction_parameters(
    op: str,
    prescale: float,
    postscale: float,
    is_local: bool = False,
    splits: tuple[int, ...] = (),
) -> Parameters:
    """Return the parameters of a reduction, for the engine."""
    return parameters(
        op=op,
        prescale=prescale,
        postscale=postscale,
        local_only=is_local,
        splits=splits,
    )
