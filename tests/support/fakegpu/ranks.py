"""Runs a function on several ranks, each with a fake GPU of its own.

::

    results = run_ranks_on_gpus(4, body, x, seed=7)

``body`` gets its tensors in device memory, and factories such as ``torch.zeros`` make
tensors there. Its results come back as tensors of the host.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from bluecomm.device import runtime
from tests.support.fakegpu.device import made
from tests.support.fakegpu.futures import stream_future
from tests.support.fakegpu.kernels import launch
from tests.support.fakegpu.library import load
from tests.support.fakegpu.mode import are_kernels, kernels
from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.ranks import run_ranks


class FakeRuntime:
    """A ``DeviceRuntime`` that asks the fake in place of torch.

    Args:
        memory: Memory of the device.
        runs_host_tests: Whether callbacks of futures are those of tests of the host.
    """

    def __init__(self, memory: DeviceMemory, *, runs_host_tests: bool = False) -> None:
        self.memory = memory
        self._runs_host_tests = runs_host_tests
        # That of the callbacks of futures, and that of bluecomm's kernels.
        self._streams: dict[str, int] = {}
        # Module and name of the kernels that were started.
        self.launched: list[tuple[str, str]] = []
        # Devices on which no kernels of Numba run.
        self.without_kernels: set[int] = set()

    def count(self) -> int:
        return made("cuDeviceGetCount", kind=ctypes.c_int)

    def is_in_use(self) -> bool:
        return True

    def index_of(self, tensor: torch.Tensor) -> int | None:
        return self.memory.ordinal if self.memory.holds(tensor) else None

    def current_stream(self, index: int) -> int:
        # Tests make streams on one device only.
        return self.memory.current_stream if index == self.memory.ordinal else 0

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, index: int
    ) -> torch.Tensor:
        assert index == self.memory.ordinal
        return self.memory.empty(shape, dtype)

    def at(self, address: int, nbytes: int, index: int) -> torch.Tensor:
        assert index == self.memory.ordinal
        return self.memory.at(address, nbytes)

    def stream_context(self, index: int) -> contextlib.AbstractContextManager[Any]:
        return _StreamContext(self.memory, self.current_stream(index))

    def side_stream_context(self, index: int) -> contextlib.AbstractContextManager[Any]:
        assert index == self.memory.ordinal
        return _StreamContext(self.memory, self._stream_of("kernels"))

    def new_future(self, index: int) -> torch.futures.Future[Any]:
        assert index == self.memory.ordinal
        return stream_future(
            self.memory, self._stream_of("callbacks"), self._runs_host_tests
        )

    def why_no_kernels(self) -> str | None:
        if self.memory.ordinal in self.without_kernels:
            return "numba.cuda finds no toolkit"
        return None

    def launch(
        self,
        module: str,
        kernel: str,
        blocks: int,
        arguments: tuple[torch.Tensor | float, ...],
    ) -> None:
        launch(self.memory, module, kernel, blocks, arguments)
        self.launched.append((module, kernel))

    def _stream_of(self, use: str) -> int:
        # Two threads may make the first one, but both get the same.
        return self._streams.get(use) or self._streams.setdefault(
            use, self.memory.new_stream()
        )


class _StreamContext(contextlib.AbstractContextManager[None]):
    """Makes a stream current, and torch's operations kernels, in any thread."""

    def __init__(self, memory: DeviceMemory, stream: int) -> None:
        self._memory = memory
        self._stream = stream
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> None:
        with contextlib.ExitStack() as entered:
            entered.enter_context(self._memory.on_stream(self._stream))
            if not are_kernels():
                entered.enter_context(kernels(self._memory))
            self._entered.append(entered.pop_all())

    def __exit__(self, *exception: object) -> None:
        self._entered.pop().close()


def run_ranks_on_gpus(
    world_size: int,
    body: Callable[..., Any],
    *args: Any,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> list[Any]:
    """Return what ``body(*args)`` returns on each rank, each with a GPU of its own.

    Args:
        world_size: Number of ranks.
        body: As for ``run_ranks``.
        *args: Its arguments. Their tensors are moved to the device.
        seed: ``FAKEGPU_SEED``.
        environment: Additional environment variables.
        **options: As for ``run_ranks``.

    Raises:
        RankFailure: As in ``run_ranks``, or a rank used CUDA or NCCL wrongly.
    """
    where = {"FAKEGPU_SEED": str(seed), **(environment or {})}
    if "machines" in options:
        # The fake has the devices of all machines, and a rank's is that of its number
        # in the job, not on its machine.
        where.setdefault("BLUECOMM_SHARE_GPUS", "1")
    return run_ranks(world_size, run_on_gpu, body, args, environment=where, **options)


def run_on_gpu(
    body: Callable[..., Any],
    args: Sequence[Any],
    without_kernels: Iterable[int] = (),
) -> Any:
    """Run ``body`` on this rank's device.

    Args:
        body: As for ``run_ranks``.
        args: Its arguments. Their tensors are moved to the device.
        without_kernels: Devices on which no kernels of Numba run.

    Raises:
        AssertionError: CUDA or NCCL were used wrongly.
    """
    import bluecomm as bf

    memory = DeviceMemory(bf.rank())
    # The next test may reuse this process for tensors of the host.
    device = FakeRuntime(memory)
    device.without_kernels = {*without_kernels}
    with runtime.use(device), kernels(memory, makes_tensors=True):
        result = body(*tree_map_only(torch.Tensor, memory.upload, list(args)))
        result = tree_map_only(torch.Tensor, _to_host(memory), result)
        bf.shutdown()  # which ends rounds of optimizers, while there is a device
    texts = load().violations()
    assert not texts, "\n".join(texts)
    return result


def place(model: torch.nn.Module) -> torch.nn.Module:
    """Move a model to this rank's device, if there is one; ``model.cuda()`` in a test.

    Returns:
        The model.
    """
    if (memory := this_memory()) is not None:
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = memory.upload(tensor.data)
    return model


def this_memory() -> Any:
    """Return the memory of this rank's device; ``None`` if the test has no devices.

    It is a ``DeviceMemory``, or on a GPU a ``tests.gpu.memory.CudaMemory``.
    """
    return getattr(runtime.current_runtime(), "memory", None)


def _to_host(memory: DeviceMemory) -> Callable[[torch.Tensor], torch.Tensor]:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        return memory.download(tensor) if memory.holds(tensor) else tensor

    return move
