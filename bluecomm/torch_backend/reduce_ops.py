"""Translates torch's reductions into those of the engine."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, cast

import torch
from torch.distributed import ReduceOp

from bluecomm.ops import reduce_op as bluecomm_reductions
from bluecomm.ops.reduce_op import reduction_parameters
from bluecomm.ops.tensor import dtype_word
from bluecomm.runtime import parameters

_WORDS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "average",
    ReduceOp.PREMUL_SUM: "sum",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "bit_and",
    ReduceOp.BOR: "bit_or",
    ReduceOp.BXOR: "bit_xor",
}
# The engine's sum of booleans is their `or`, the product their `and`.
_OF_BOOLEANS = {
    ReduceOp.SUM: "sum",
    ReduceOp.MAX: "sum",
    ReduceOp.BOR: "sum",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "product",
    ReduceOp.BAND: "product",
    ReduceOp.BXOR: "bit_xor",
}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_OF_COMPLEX = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM)


class EngineReduction(NamedTuple):
    """How the engine computes a reduction of torch.

    Attributes:
        dtype: The engine's element type.
        parameters: The engine's parameters, as ``bluecomm.runtime.parameters`` makes.
        divisor: Number by which the result is divided, truncating; 0 for none. After a
            loss, the number of ranks that have contributed takes its place.
    """

    dtype: str
    parameters: Any
    divisor: int


def _op_and_factor(given: Any) -> tuple[Any, Any]:
    """Return a constant such as ReduceOp.SUM, and the factor of PREMUL_SUM."""
    if not isinstance(given, ReduceOp):
        return given, None
    op, factor = cast("tuple[Any, Any]", given.__getstate__())
    return op, factor


def reduction(
    given: Any,
    tensor: torch.Tensor,
    size: int,
    operation: str,
    *,
    root: int = 0,
    splits: tuple[int, ...] = (),
    is_mean: bool = False,
) -> EngineReduction:
    """Return the reduction of a tensor over ``size`` ranks.

    The average of integers is their sum divided by ``size``, truncated toward zero, as
    in NCCL.

    A sum of values that the ranks have divided by ``size`` is the mean over all ranks.
    To be the mean over the contributing ranks after a loss, too, it is computed as
    their average times ``size``. Until a rank is lost, this has the bits of the sum.

    Args:
        given: torch's reduction.
        tensor: Tensor of the element type.
        size: Number of ranks.
        operation: torch's name of the collective.
        root: Member that gets the result of ``reduce``.
        splits: Number of elements for each rank; if empty, the same number for all.
        is_mean: Whether a sum is a mean, because its inputs are divided by ``size``.

    Raises:
        RuntimeError: The reduction is not defined for the element type.
    """
    op, factor = _op_and_factor(given)
    scale = None if factor is None else float(factor)
    return _reduction(op, scale, tensor.dtype, size, operation, root, splits, is_mean)


# A program repeats a few reductions, and this costs more than a small operation.
@functools.lru_cache(maxsize=256)
def _reduction(
    op: Any,
    scale: float | None,
    dtype: torch.dtype,
    size: int,
    operation: str,
    root: int,
    splits: tuple[int, ...],
    is_mean: bool,
) -> EngineReduction:
    """Return the reduction of elements of a type; see ``reduction``."""
    table = _OF_BOOLEANS if dtype is torch.bool else _WORDS
    word = table.get(op)
    is_floating = dtype.is_floating_point or dtype.is_complex
    if (
        word is None
        or (is_floating and op in _BITWISE)
        or (dtype.is_complex and op not in _OF_COMPLEX)
        or (scale is not None and not is_floating)
    ):
        raise RuntimeError(
            f"{operation}: cannot use ReduceOp.{op.name} with tensors of type {dtype}"
        )
    factor = 1.0 if scale is None else scale
    divisor = size if word == "average" and not is_floating else 0
    word = "sum" if divisor else word
    if is_mean and op == ReduceOp.SUM and is_floating:
        made = reduction_parameters("average", 1.0, float(size))
        return EngineReduction(dtype_word(dtype, "allreduce"), made, 0)
    made = (
        parameters(op=word, prescale=factor, root=root, splits=splits)
        if root or splits
        else reduction_parameters(word, factor, 1.0)
    )
    return EngineReduction(dtype_word(dtype, "allreduce"), made, divisor)


def sparse_reduction(given: Any, operation: str) -> bluecomm_reductions.ReduceOp:
    """Return the reduction of sparse tensors.

    Raises:
        RuntimeError: The reduction is neither SUM nor AVG.
    """
    op, _ = _op_and_factor(given)
    if op == ReduceOp.SUM:
        return bluecomm_reductions.Sum
    if op == ReduceOp.AVG:
        return bluecomm_reductions.Average
    raise RuntimeError(
        f"{operation}: cannot use ReduceOp.{op.name} with sparse tensors; "
        "use SUM or AVG"
    )
