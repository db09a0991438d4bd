"""Launches kernels of ``numba.cuda``: a block of threads for each chunk.

docs/notes/codec-kernels.md says which facts about Numba this relies on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from typing import Any

import torch

# Without types. A simulator may stand for it.
cuda: Any = importlib.import_module("numba.cuda")

# Threads of a block. A kernel works with any number of them.
_THREADS = 256
# Threads of a block that walks over chunks: the most that a block can have, so that
# one block can keep a multiprocessor busy.
_WALKING_THREADS = 1024
# Multiprocessors of the simulator.
_SIMULATED = 2


@functools.cache
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
    kernel: Any,
    chunks: int,
    arguments: tuple[torch.Tensor | float, ...],
    *,
    walks: bool = False,
) -> None:
    """Start a kernel on the current stream of torch, and do not wait for its end.

    All tensors are on one device: the CPU only under Numba's simulator.

    Args:
        kernel: The kernel.
        chunks: Number of chunks.
        arguments: The arguments of the kernel.
        walks: Whether a block works on many chunks. There is then a block for each
            multiprocessor, at most.

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
    processors = _SIMULATED
    if device.type == "cuda":
        context = cuda.gpus[device.index]
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    shape = (min(chunks, processors), _WALKING_THREADS) if walks else (chunks, _THREADS)
    with context:
        if device.type == "cuda":
            pointer = torch.cuda.current_stream(device).cuda_stream
            stream = _stream_of(device.index, pointer)
        arrays = [
            _array_of(one) if isinstance(one, torch.Tensor) else one
            for one in arguments
        ]
        _configure(kernel, *shape, stream)
        kernel[(*shape, stream)](*arrays)


@functools.lru_cache(maxsize=64)
def _stream_of(index: int, pointer: int) -> Any:
    """Return Numba's object for a stream of a device, whose context is current."""
    # Numba's own default, 0, depends on its settings.
    return cuda.external_stream(pointer) if pointer else cuda.legacy_default_stream()


@functools.lru_cache(maxsize=128)
def _configure(kernel: Any, blocks: int, threads: int, stream: Any) -> None:
    """Let Numba remember how a kernel is launched, and say nothing."""
    with warnings.catch_warnings():
        # A bucket may have few chunks, and Numba then warns that the GPU has more room.
        warnings.simplefilter("ignore")
        kernel[blocks, threads, stream]


def _array_of(tensor: torch.Tensor) -> Any:
    if not tensor.is_cuda:
        return tensor.numpy()
    # The tensor is used on the stream of the launch, which is the current one.
    return cuda.as_cuda_array(tensor, sync=False)
