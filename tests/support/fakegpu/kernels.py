"""Kernels of Numba on the fake's tensors: those for CPUs, in place of those for GPUs.

Tests under Numba's simulator show that both give the same bits. A kernel waits for the
current stream only, works on copies of what the stream sees, and writes its results
late, by tasks of that stream; see ``mode.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.support.fakegpu.tensors import DeviceMemory

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
    twin = getattr(importlib.import_module(f"{base}_cpu"), kernel)
    label = f"{name}.{kernel}"
    for one in arguments:
        assert not isinstance(one, torch.Tensor) or memory.holds(one), label
    copies = [
        memory.read(one, label) if isinstance(one, torch.Tensor) else one
        for one in arguments
    ]
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
