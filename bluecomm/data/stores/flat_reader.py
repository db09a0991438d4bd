"""Functions that read flat values, made once for each structure.

Samples of a dataset mostly have the same structure. Reading it anew for each sample
would take longer than a small value itself.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

ALIGNMENT = 64

# Returns the value of a memory; told whether pickled parts are allowed.
Reader = Callable[[memoryview, bool], Any]

# Readers of structures of at most so many bytes are kept, the last ones used.
_KEPT_NBYTES = 1024
_KEPT = 1024
_DTYPES = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def aligned(nbytes: int) -> int:
    """Return the next multiple of ``ALIGNMENT``."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def reader_of(structure: bytes, begin: int) -> Reader:
    """Return the function that reads values of a structure.

    Args:
        structure: The structure in JSON; see ``flat_value``.
        begin: Where the first buffer begins in the memory.

    Raises:
        Exception: It is no structure of this version.
    """
    if len(structure) > _KEPT_NBYTES:
        return _make(structure, begin)
    return _kept(structure, begin)


def _make(structure: bytes, begin: int) -> Reader:
    return _Maker(begin).make(json.loads(str(structure, "ascii")))


_kept = functools.lru_cache(_KEPT)(_make)


class _Maker:
    """Makes the reader of a structure, whose buffers follow each other.

    Args:
        begin: Where the first buffer begins.
    """

    def __init__(self, begin: int) -> None:
        self._at = begin

    def make(self, node: Any) -> Reader:
        """Return the reader of a part."""
        kind, content, *shape = node
        if kind == "v":
            return lambda memory, allow_pickle: content
        if kind in ("l", "u"):
            return _of_items([self.make(one) for one in content], kind == "u")
        if kind == "d":
            return _of_pairs([(name, self.make(one)) for name, one in content])
        if kind == "t":
            return self._tensor(_DTYPES[content], shape[0])
        if kind == "a":
            return self._array(np.dtype(content), shape[0])
        begin = self._next(content)
        if kind == "b":
            return lambda memory, _: bytes(memory[begin : begin + content])
        return _of_pickled(begin, content)

    def _next(self, nbytes: int) -> int:
        begin = self._at
        self._at += aligned(nbytes)
        return begin

    # The whole memory is passed with an offset, because a slice of a memoryview would
    # not keep the memoryview itself alive.
    def _tensor(self, dtype: torch.dtype, shape: list[int]) -> Reader:
        count = math.prod(shape)
        if count == 0:
            return lambda memory, _: torch.empty(shape, dtype=dtype)
        begin = self._next(count * dtype.itemsize)
        if len(shape) == 1:
            return lambda memory, _: torch.frombuffer(
                memory, dtype=dtype, count=count, offset=begin
            )
        return lambda memory, _: torch.frombuffer(
            memory, dtype=dtype, count=count, offset=begin
        ).view(shape)

    def _array(self, dtype: np.dtype[Any], shape: list[int]) -> Reader:
        count = math.prod(shape)
        if count * dtype.itemsize == 0:
            return lambda memory, _: np.empty(shape, dtype)
        begin = self._next(count * dtype.itemsize)
        return lambda memory, _: np.frombuffer(memory, dtype, count, begin).reshape(
            shape
        )


def _of_items(items: list[Reader], is_tuple: bool) -> Reader:
    if is_tuple:
        return lambda memory, allow_pickle: tuple(
            [read(memory, allow_pickle) for read in items]
        )
    return lambda memory, allow_pickle: [read(memory, allow_pickle) for read in items]


def _of_pairs(pairs: list[tuple[str, Reader]]) -> Reader:
    return lambda memory, allow_pickle: {
        name: read(memory, allow_pickle) for name, read in pairs
    }


def _of_pickled(begin: int, nbytes: int) -> Reader:
    def read(memory: memoryview, allow_pickle: bool) -> Any:
        if not allow_pickle:
            raise ValueError(
                "the store has a pickled value, and allow_pickle is False; pass "
                "allow_pickle=True only if nobody else can write to the store"
            )
        return pickle.loads(memory[begin : begin + nbytes])

    return read
