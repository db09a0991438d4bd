"""Values as flat bytes: tensors, arrays and bytes as they are, the rest pickled.

::

    length     of the structure, 4 bytes, little-endian
    structure  JSON: lists, tuples and dictionaries; numbers and text; and for each
               buffer its kind, type and shape
    buffers    in the order of the structure, each at a multiple of 64 bytes

A tensor or an array is decoded without a copy: it lies in the memory of the flat bytes.
"""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import numpy as np
import torch

from bluecomm.data.stores.flat_reader import aligned, reader_of

_LENGTH = struct.Struct("<I")
_SCALARS = (type(None), bool, int, float, str)


def encode_value(value: Any, *, allow_pickle: bool = True) -> list[Any]:
    """Return the flat bytes of a value, as buffers that follow each other.

    Args:
        value: Any value that can be pickled.
        allow_pickle: Whether it may have parts that must be pickled.

    Raises:
        TypeError: A part must be pickled, and may not or cannot.
    """
    buffers: list[Any] = []
    node = _encode(value, buffers, allow_pickle)
    text = json.dumps(node, separators=(",", ":")).encode()
    parts: list[Any] = []
    for part in (_LENGTH.pack(len(text)) + text, *buffers):
        nbytes = memoryview(part).nbytes
        parts += [part, bytes(aligned(nbytes) - nbytes)]
    return parts


def nbytes_of(parts: list[Any]) -> int:
    """Return the bytes of what ``encode_value`` returns."""
    return sum(memoryview(part).nbytes for part in parts)


def decode_value(memory: memoryview, *, allow_pickle: bool = True) -> Any:
    """Return the value of flat bytes.

    Args:
        memory: The bytes, at an address that is a multiple of 64. Tensors and arrays
            keep this object alive, and share its memory, so it must be writable.
        allow_pickle: Whether pickled parts are decoded, which runs code that they
            name.

    Raises:
        ValueError: It has a pickled part, and must not; or its bytes are no value of
            this version, or are those of a class that no longer exists.
    """
    try:
        (length,) = _LENGTH.unpack_from(memory)
        begin = _LENGTH.size + length
        read = reader_of(bytes(memory[_LENGTH.size : begin]), aligned(begin))
        return read(memory, allow_pickle)
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(
            f"the store has bytes that are no value here ({type(error).__name__}: "
            f"{error}); change version=, or use another folder or prefix"
        ) from error


def _encode(value: Any, buffers: list[Any], allow_pickle: bool) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return ["v", value]
    if kind in (list, tuple):
        items = [_encode(one, buffers, allow_pickle) for one in value]
        return ["l" if kind is list else "u", items]
    if kind is dict and all(type(name) is str for name in value):
        pairs = value.items()
        return ["d", [[n, _encode(one, buffers, allow_pickle)] for n, one in pairs]]
    if kind is bytes:
        buffers.append(value)
        return ["b", len(value)]
    if kind is torch.Tensor and _is_plain(value):
        # A contiguous tensor of one element may have any stride.
        flat = value.contiguous().as_strided((value.numel(),), (1,))
        buffers.append(flat.view(torch.uint8).numpy())
        return ["t", str(value.dtype), list(value.shape)]
    if kind is np.ndarray and value.dtype.kind in "biufcmMSU":
        buffers.append(np.array(value, order="C").reshape(-1).view(np.uint8))
        return ["a", value.dtype.str, list(value.shape)]
    return ["p", _pickled(value, buffers, allow_pickle)]


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized)
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _pickled(value: Any, buffers: list[Any], allow_pickle: bool) -> int:
    name = type(value).__name__
    if not allow_pickle:
        raise TypeError(
            f"a value of type {name} must be pickled, and the store does not allow it; "
            "pass allow_pickle=True if nobody else can write to the store, or return "
            "tensors, arrays, bytes, numbers, text, and lists, tuples and dictionaries "
            "of these"
        )
    try:
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise TypeError(f"a value of type {name} cannot be pickled: {error}") from error
    buffers.append(data)
    return len(data)
