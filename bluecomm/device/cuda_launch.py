"""Launches kernels of ``numba.cuda``: a block of threads for each chunk."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

# Threads of a block. A kernel works with any number of them.
_THREADS = 256


def why_not() -> str | None:
    """Return why kernels cannot be compiled and run, or ``None`` if they can."""
    try:
        if cuda.is_available():
            return None
        problem = cuda.cuda_error() or "it finds no libNVVM"
    except Exception as error:  # of a driver that Numba does not know
        problem = error
    return " ".join(str(problem).split())


def launch(
    kernel: Any, chunks: int, arguments: tuple[torch.Tensor | float, ...]
) -> None:
    """Start a kernel on the current stream of torch, and do not wait for its end.

    All tensors are on one device: the CPU only under Numba's simulator.

    Raises:
        RuntimeError: Numba finds no GPU that it can use.
    """
    if problem := why_not():
        raise RuntimeError(
            "codecs need numba.cuda for CUDA tensors, and it cannot use the GPU "
            f"({problem}); install its CUDA toolkit, or call cpu() first"
        )
    if not chunks:
        return
    device = next(one.device for one in arguments if isinstance(one, torch.Tensor))
    stream: Any = 0
    context: Any = contextlib.nullcontext()
    if device.type == "cuda":
        pointer = torch.cuda.current_stream(device).cuda_stream
        context = cuda.gpus[device.index]
    with context:
        if device.type == "cuda":
            # Numba takes 0 for its own default stream, as torch does.
            stream = cuda.external_stream(pointer) if pointer else 0
        arrays = [
            _array_of(one) if isinstance(one, torch.Tensor) else one
            for one in arguments
        ]
        kernel[chunks, _THREADS, stream](*arrays)


def _array_of(tensor: torch.Tensor) -> Any:
    return cuda.as_cuda_array(tensor) if tensor.is_cuda else tensor.numpy()
