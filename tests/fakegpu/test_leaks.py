"""Worlds whose operations and windows use devices leave nothing behind."""

from __future__ import annotations

import functools
import gc
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pytest
import torch

import bluecomm as bf
from bluecomm.device import runtime
from bluecomm.device.staging_table import staging_of
from bluecomm.window.live import find
from tests.support.errors import error_text
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.library import load
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.ranks import FakeRuntime, place, this_memory
from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.fakegpu.training import (
    SMALL,
    distribute,
    make_batches,
    make_model,
    train_steps,
)
from tests.support.fakegpu.transports import NCCL, NCCL_PUTS, STAGED
from tests.support.fakegpu.window_calls import others
from tests.support.leaks import check_returned, held
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 3
# How often a process makes the same worlds. It may keep what it holds after the first
# time.
ROUNDS = 2
# The most blocks of page-locked memory of each size that a world uses, and the sizes.
BLOCKS = 64
SIZES = [1 << power for power in range(12, 18)]
# Worlds whose windows are mapped by CUDA, or on the host.
MAPPED = {**NCCL, "BLUECOMM_WINDOWS": "auto"}
ON_HOST = {**STAGED, "BLUECOMM_WINDOWS": "auto"}


def counts() -> Counter[str]:
    """Return what this process holds of the system and of the fake's libraries."""
    system = held()
    # As in NCCL, a thread that waits for the ranks of a unique id has a socket.
    system["descriptor socket:[#]"] -= system.pop("thread fakegpu-id", 0)
    fill_pool()
    return system + Counter(load().live())


def fill_pool() -> None:
    """Bring the pool of page-locked memory to a size that no world exceeds.

    A world uses at most ``BLOCKS`` blocks of each size. If it has left none in use, the
    pool has these blocks, and this allocates no more.
    """
    staging = staging_of(torch.ones(1))
    assert staging is not None
    blocks = [
        staging.empty_on_host([nbytes], torch.uint8)
        for nbytes in SIZES
        for _ in range(BLOCKS)
    ]
    blocks.clear()


def use_everything() -> None:
    """Make calls of each kind, and leave some of them to ``shutdown``."""
    rank = bf.rank()
    x = torch.ones(2000)
    bf.allreduce(x, op=bf.Sum)
    bf.neighbor_allreduce(x)
    bf.allgather(x[: rank + 1])
    bf.reduce(x, 1)
    bf.allreduce_nonblocking(x, name="dropped")
    if rank < 2:
        bf.pair_gossip(x, 1 - rank)
    ends = bf.ProcessSet([0, 2])
    if ends.included:
        bf.allreduce(x, process_set=ends)
        ends.free()
    for name in ("freed", "live"):
        bf.win_create(x, name, zero_init=True)
        bf.win_put(x, name)
        bf.barrier()
        bf.win_update(name, 1.0, others())
        bf.win_accumulate(x, name)
    bf.barrier()
    bf.win_free("freed")
    model = place(make_model())
    optimizer = distribute(model, {"algorithm": "gradient_allreduce", **SMALL})
    train_steps(model, optimizer, [this_memory().upload(x) for x in make_batches()])


class Fault(NamedTuple):
    """A fault of one rank that makes calls fail, or puts windows on the host."""

    fault: str
    rank: int
    settings: Mapping[str, str]


FAULTS = (
    Fault("ncclGetUniqueId:1=2", 0, NCCL_PUTS),
    Fault("ncclCommInitRankConfig:1=3", 1, NCCL_PUTS),
    Fault("ncclCommInitRankConfig:1=async6", 1, MAPPED),
    Fault("ncclAllReduce:1=3", 2, MAPPED),
    Fault("cuEventRecord:1=700", 1, MAPPED),
    Fault("cuIpcGetMemHandle:1=1", 1, MAPPED),
    Fault("cuIpcOpenMemHandle:2=205", 1, MAPPED),
    Fault("ncclMemAlloc:1=1", 1, NCCL_PUTS),
    Fault("ncclCommWindowRegister:1=3", 1, NCCL_PUTS),
    Fault("ncclPutSignal:1=3", 1, NCCL_PUTS),
    Fault("cuMemHostAlloc:1=2", 1, ON_HOST),
    Fault("cuMemcpyDtoHAsync:1=700", 1, ON_HOST),
)


def fail(fault: Fault) -> None:
    """Make calls and a window; with the fault, one fails or the host has the window."""
    x = torch.ones(20_000)  # more than is in the pool of page-locked memory
    set_fake(FAIL=fault.fault if bf.rank() == fault.rank else "")
    errors = [error_text(lambda: bf.allreduce(x, name="x"))]
    errors.append(error_text(lambda: bf.win_create(x, "x")))
    if "x" in bf.get_current_created_window_names():
        if find("test", "x").device is None:
            errors.append("on the host")
        errors.append(error_text(lambda: bf.win_put(x, "x")))
    set_fake(FAIL="")
    assert not any("CommunicationTimeout" in text for text in errors), errors
    assert bf.rank() != fault.rank or {*errors} != {"no error"}, fault


# The settings of a world, and what it does.
World = tuple[Mapping[str, str], Callable[[], None]]


def repeat(worlds: Sequence[World], rounds: int) -> None:
    """Run worlds several times; check that they leave no more than the first time."""
    memory = DeviceMemory(int(os.environ["BLUECOMM_RANK"]))
    with runtime.use(FakeRuntime(memory)), kernels(memory, makes_tensors=True):
        tensors = load().live()["tensors"]
        for number in range(rounds):
            for settings, body in worlds:
                os.environ.update(settings)
                bf.init()
                body()
                memory.synchronize()  # with copies to the device
                bf.shutdown()
            if number == 0:
                first = {**counts(), "tensors": tensors}
            check_returned(first, counts)
            texts = load().violations()
            assert not texts, "\n".join(texts)


def end_without_garbage_collection() -> None:
    """End two worlds; check that the second one leaves as many streams as the first."""
    memory = DeviceMemory(int(os.environ["BLUECOMM_RANK"]))
    left = []
    with runtime.use(FakeRuntime(memory)), kernels(memory, makes_tensors=True):
        gc.disable()
        try:
            for _ in range(ROUNDS):
                bf.init()
                bf.allreduce(torch.ones(3))
                bf.shutdown()
                left.append(load().live()["streams"])
        finally:
            gc.enable()
    assert left[0] == left[1]


def test_streams_end_without_garbage_collection():
    run_ranks(
        2, end_without_garbage_collection, environment=NCCL_PUTS, initialize=False
    )


def test_worlds_leave_nothing():
    worlds = [(settings, use_everything) for settings in (NCCL_PUTS, MAPPED, ON_HOST)]
    run_ranks(RANKS, repeat, worlds, ROUNDS, initialize=False)


def test_failures_leave_nothing():
    worlds = [(one.settings, functools.partial(fail, one)) for one in FAULTS]
    run_ranks(RANKS, repeat, worlds, ROUNDS, initialize=False)
