"""Kernels of Numba on the fake's tensors: those for CPUs, in place of those for GPUs.

Formulas of torch stand in for those without one for CPUs.

Tests under Numba's simulator show that both give the same bits. A kernel waits for the
current stream only, works on copies of what the stream sees, and writes its results
late, by tasks of that stream; see ``mode.py``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.half_sums import assert_fit_for_words, half_sum

# The positions of the arguments that a kernel writes, by the end of its module's name.
_WRITTEN = {
    ("min_max", "encode"): (1, 2),
    ("min_max", "decode"): (1,),
    ("min_max", "encode_pieces"): (1,),
    ("min_max", "decode_pieces"): (1,),
    ("scaled_sign", "encode"): (1, 2),
    ("scaled_sign", "decode"): (2,),
    ("e3m0", "encode"): (1, 2),
    ("e3m0", "decode"): (2,),
    ("chunked_top_k", "encode"): (1, 2),
    ("chunked_top_k", "decode"): (2,),
    ("quantized_top_k", "quantize"): (1, 2),
    ("quantized_top_k", "restore"): (2,),
    ("top_k", "count_upper"): (2,),
    ("top_k", "count_lower"): (3,),
    ("top_k", "pick"): (5, 6),
    ("random_k", "draw"): (3,),
}


def _add(
    dtype: torch.dtype,
    own: torch.Tensor,
    received: torch.Tensor,
    weights: torch.Tensor,
    own_weight: float,
    result: torch.Tensor,
    stride: int,
    _: int,
) -> None:
    rows = received.view(dtype).view(-1, stride)[:, : own.numel()]
    total = half_sum(own.view(dtype), own_weight, rows, weights.tolist())
    result.copy_(total.view(torch.int16))


# The kernels without one for CPUs, and the positions of the arguments that they write.
_FORMULAS = {
    ("half_sum", "add_float16"): (functools.partial(_add, torch.float16), (4,)),
    ("half_sum", "add_bfloat16"): (functools.partial(_add, torch.bfloat16), (4,)),
}


def launch(
    memory: DeviceMemory,
    module: str,
    kernel: str,
    blocks: int,
    arguments: Sequence[torch.Tensor | float],
) -> None:
    """Start a kernel on the current stream; arguments as ``DeviceRuntime.launch``."""
    base = module.removesuffix("_cuda")
    name = base.rpartition(".")[2]
    label = f"{name}.{kernel}"
    for one in arguments:
        assert not isinstance(one, torch.Tensor) or memory.holds(one), label
    copies = [
        memory.read(one, label) if isinstance(one, torch.Tensor) else one
        for one in arguments
    ]
    if (name, kernel) in _FORMULAS:
        assert_fit_for_words(arguments)
        formula, written = _FORMULAS[name, kernel]
        formula(*copies)
    else:
        twin = getattr(importlib.import_module(f"{base}_cpu"), kernel)
        written = _run(twin, blocks, copies, _WRITTEN[name, kernel])
    for position in written:
        argument, copy = arguments[position], copies[position]
        assert isinstance(argument, torch.Tensor)
        assert isinstance(copy, torch.Tensor)
        memory.write(argument, copy, label)


def _run(
    twin: Callable[..., Any],
    blocks: int,
    copies: list[torch.Tensor | float],
    written: tuple[int, ...],
) -> tuple[int, ...]:
    """Run a kernel for CPUs, and return the positions of what it has written."""
    parameters = twin.py_func.__code__.co_argcount
    arrays = [one.numpy() if isinstance(one, torch.Tensor) else one for one in copies]
    # The last two are the first chunk and the end.
    if len(arrays) == parameters - 2:
        twin(*arrays, 0, blocks)
        return written
    *arrays, well = arrays
    for block in range(blocks):
        if not twin(*arrays, block, block + 1):
            well[block] = 0
    return (*written, len(arrays))
