"""The GPU of a rank, with the methods that the bodies of tests use of the fake's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from bluecomm.device.runtime import TorchRuntime
from tests.support.fakegpu.callers import is_factory_of_tests


class CudaMemory:
    """Memory of this process's GPU; see ``tests.support.fakegpu.tensors``.

    Args:
        device: The GPU, with its number.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ordinal = device.index
        self.has_ddp = False
        # Always empty: ``tests.gpu.hot_path`` looks for waits of the host.
        self.host_waits: list[str] = []

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the same values on the GPU."""
        wants_grad = tensor.requires_grad
        return tensor.detach().to(self.device).requires_grad_(wants_grad)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cpu()

    def synchronize(self) -> None:
        self.current_stream.synchronize()

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)

    def on_stream(
        self, stream: torch.cuda.Stream | int
    ) -> contextlib.AbstractContextManager[Any]:
        """Make a stream current; 0 is the default stream."""
        if isinstance(stream, int):
            stream = torch.cuda.default_stream(self.device)
        return torch.cuda.stream(stream)

    @property
    def current_stream(self) -> torch.cuda.Stream:
        """The current stream of this thread."""
        return torch.cuda.current_stream(self.device)

    @current_stream.setter
    def current_stream(self, stream: torch.cuda.Stream | int) -> None:
        if isinstance(stream, int):
            stream = torch.cuda.default_stream(self.device)
        torch.cuda.set_stream(stream)

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Capture a CUDA graph of what the block does."""
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process, such as NCCL's, may call CUDA meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            yield


class CudaRuntime(TorchRuntime):
    """Torch's devices, and this rank's memory for the bodies of tests."""

    def __init__(self, memory: CudaMemory) -> None:
        self.memory = memory


class TensorsOfTests(TorchFunctionMode):
    """Lets factories such as ``torch.zeros`` that tests call make tensors of the GPU.

    Factories that bluecomm calls make tensors of the host, as without this mode.
    """

    def __init__(self, memory: CudaMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        result = function(*args, **kwargs)
        if is_factory_of_tests(function, kwargs):
            return self._memory.upload(result)
        return result
