"""Runs bodies of ``run_ranks`` on fake GPUs, of which the bodies do not know.

::

    with over_fakegpu("nccl", seed=7):
        run_ranks(3, body, x)   # x, and what body makes, are tensors of a device
"""

from __future__ import annotations

import contextlib
import copyreg
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from bluecomm.device import runtime
from tests.support.fakegpu.library import load
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.ranks import FakeRuntime, this_memory
from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.ranks import runs_within

_DEVICES = 8  # the default of the fake


@contextlib.contextmanager
def over_fakegpu(transport: str, seed: int) -> Iterator[None]:
    """Run the bodies of ``run_ranks`` on fake GPUs.

    Args:
        transport: ``BLUECOMM_DEVICE_TRANSPORT``, unless the test sets it.
        seed: ``FAKEGPU_SEED``.
    """

    def around(
        world_size: int,
        body: Callable[..., Any],
        args: tuple[Any, ...],
        environment: Mapping[str, str],
    ) -> tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, str]]:
        settings = {
            "BLUECOMM_DEVICE_TRANSPORT": transport,
            # Devices are chosen by the number of a rank in the job, not on its machine.
            "BLUECOMM_SHARE_GPUS": "1",
            "FAKEGPU_SEED": str(seed),
            "FAKEGPU_DEVICES": str(max(_DEVICES, world_size)),
            **environment,
        }
        return run_host_body, (body, args), settings

    with runs_within(around):
        yield


def run_host_body(body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a body that was written for the host on this rank's device.

    Args:
        body: As for ``run_ranks``.
        args: Its arguments. Their tensors are moved to the device.

    Returns:
        Its result, with tensors of the host.

    Raises:
        AssertionError: CUDA or NCCL were used wrongly.
    """
    import bluecomm as bf

    memory = DeviceMemory(int(os.environ["BLUECOMM_RANK"]))
    memory.has_ddp = True
    with (
        runtime.use(FakeRuntime(memory, runs_host_tests=True)),
        kernels(memory, runs_host_tests=True),
        _tensors_pickled(memory),
        _violations_raised(),
    ):
        result = body(*tree_map_only(torch.Tensor, memory.upload, list(args)))
        pickled = pickle.dumps(result)
        bf.shutdown()  # which ends rounds of optimizers, while there is a device
    return pickle.loads(pickled)


def for_thread(function: Callable[[], None]) -> Callable[[], None]:
    """Return ``function`` for a thread that a body starts; it has the body's device."""
    memory = this_memory()
    if memory is None:
        return function
    stream = memory.current_stream

    def run() -> None:
        with memory.on_stream(stream), kernels(memory, runs_host_tests=True):
            function()

    return run


@contextlib.contextmanager
def _tensors_pickled(memory: DeviceMemory) -> Iterator[None]:
    """Pickle tensors of the device by a copy to the host, also in ``torch.save``.

    Torch would read the memory of the device instead.
    """

    def reduce(tensor: torch.Tensor) -> Any:
        if memory.holds(tensor):
            return _unpickled, (memory.download(tensor),)
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    copyreg.pickle(torch.Tensor, reduce)
    try:
        with torch.serialization.safe_globals([_unpickled]):
            yield
    finally:
        del copyreg.dispatch_table[torch.Tensor]


def _unpickled(tensor: torch.Tensor) -> torch.Tensor:
    """Move a tensor that was on the device back there, if there is a device."""
    memory = this_memory()
    return tensor if memory is None else memory.upload(tensor)


@contextlib.contextmanager
def _violations_raised() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if texts := load().violations():
            raise AssertionError("\n".join(texts)) from error
        raise
    if texts := load().violations():
        raise AssertionError("\n".join(texts))
