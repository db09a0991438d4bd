"""The facts about CUDA devices that bluecomm asks torch for.

Tests replace the runtime by one whose devices are imitations; see ``use``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch


class DeviceRuntime(Protocol):
    """The memory and the streams of CUDA devices, as the program uses them."""

    def count(self) -> int:
        """Return the number of CUDA devices that the process sees."""

    def is_in_use(self) -> bool:
        """Return whether this process may have streams other than the default ones."""

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor's CUDA device, or ``None`` if it has none."""

    def current_stream(self, index: int) -> int:
        """Return the handle of the stream on which the program computes."""

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, index: int
    ) -> torch.Tensor:
        """Return an uninitialized tensor on a device, for the current stream."""

    def at(self, address: int, nbytes: int, index: int) -> torch.Tensor:
        """Return memory of a device, which the caller owns, as a tensor of bytes."""

    def stream_context(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Return a context that makes the current stream current in any thread.

        It may be entered again when it has been left.
        """

    def side_stream_context(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the side stream of a device is current.

        It may be entered again when it has been left.
        """

    def new_future(self, index: int) -> torch.futures.Future[Any]:
        """Return a future whose callbacks compute on a stream of their own."""

    def why_no_kernels(self) -> str | None:
        """Return why kernels of Numba cannot run, or ``None`` if they can."""

    def launch(
        self,
        module: str,
        kernel: str,
        blocks: int,
        arguments: tuple[torch.Tensor | float, ...],
    ) -> None:
        """Start a kernel of Numba on the current stream; do not wait for its end.

        Args:
            module: Name of the kernel's module.
            kernel: Its name.
            blocks: Number of blocks of threads. Kernels in the set ``WALKING`` of their
                module may get fewer of them.
            arguments: Its arguments. All tensors are on one device.

        Raises:
            RuntimeError: Numba cannot use the GPU.
        """


class _Bytes:
    """Bytes of a device, in the form that torch takes without a copy."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class TorchRuntime(DeviceRuntime):
    """The devices of torch."""

    def count(self) -> int:
        return torch.cuda.device_count()

    def is_in_use(self) -> bool:
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def index_of(self, tensor: torch.Tensor) -> int | None:
        return tensor.device.index if tensor.is_cuda else None

    def current_stream(self, index: int) -> int:
        return torch.cuda.current_stream(index).cuda_stream

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, index: int
    ) -> torch.Tensor:
        return torch.empty(
            tuple(shape), dtype=dtype, device=torch.device("cuda", index)
        )

    def at(self, address: int, nbytes: int, index: int) -> torch.Tensor:
        device = torch.device("cuda", index)
        return torch.as_tensor(_Bytes(address, nbytes), device=device)

    def stream_context(self, index: int) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(torch.cuda.current_stream(index))

    def side_stream_context(self, index: int) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(_side_stream(index))

    def new_future(self, index: int) -> torch.futures.Future[Any]:
        return torch.futures.Future(devices=[torch.device("cuda", index)])

    def why_no_kernels(self) -> str | None:
        try:
            from bluecomm.device.cuda_launch import why_not
        except ImportError as error:
            return f"numba.cuda cannot be imported ({error})"
        return why_not()

    def launch(
        self,
        module: str,
        kernel: str,
        blocks: int,
        arguments: tuple[torch.Tensor | float, ...],
    ) -> None:
        try:
            # Numba takes half a second to load, which programs without codecs save.
            from bluecomm.device.cuda_launch import launch

            loaded = importlib.import_module(module)
        except ImportError as error:
            raise RuntimeError(
                "codecs need numba.cuda for CUDA tensors, and it cannot be imported "
                f"({error}); install numba-cuda, or call cpu() first"
            ) from error
        walks = kernel in getattr(loaded, "WALKING", ())
        launch(getattr(loaded, kernel), blocks, arguments, walks=walks)


_side_streams: dict[int, torch.cuda.Stream] = {}


def _side_stream(index: int) -> torch.cuda.Stream:
    # Two threads may make the first one, but both get the same. Other ranks wait for
    # kernels of this stream, so they run before the program's.
    return _side_streams.get(index) or _side_streams.setdefault(
        index,
        torch.cuda.Stream(index, priority=-1),  # type: ignore[no-untyped-call]
    )


_current: DeviceRuntime = TorchRuntime()
# Whether a runtime stands in for torch's, whose tensors may seem to be on the CPU.
is_replaced = False


def current_runtime() -> DeviceRuntime:
    """Return the runtime in use."""
    return _current


@contextlib.contextmanager
def use(runtime: DeviceRuntime) -> Iterator[None]:
    """Replace torch's runtime while the context lasts."""
    global _current, is_replaced
    before = _current, is_replaced
    _current, is_replaced = runtime, True
    try:
        yield
    finally:
        _current, is_replaced = before
