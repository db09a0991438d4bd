"""Device memory that processes share by the fake's CUDA IPC: order and misuse."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

import pytest

import bluecomm as bf
from tests.support.fakegpu.device import CudaError, Device, call, made
from tests.support.fakegpu.faults import await_end
from tests.support.fakegpu.library import IpcHandle, address
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
NBYTES = 5000
LAZY = 1
INVALID_VALUE, INVALID_CONTEXT = 1, 201


def exported(memory: int) -> bytes:
    handle = IpcHandle()
    call("cuIpcGetMemHandle", ctypes.byref(handle), memory)
    return bytes(handle)


def opened(handle: bytes) -> int:
    return int(
        made(
            "cuIpcOpenMemHandle_v2",
            IpcHandle.from_buffer_copy(handle),
            LAZY,
            kind=address,
        )
    )


def code_of(function: Callable[[], object]) -> int:
    with pytest.raises(CudaError) as raised:
        function()
    return raised.value.code


def share() -> list[str]:
    """Rank 0 exports memory, which rank 1 maps, writes and closes."""
    device = Device(bf.rank())
    stream = device.stream()
    if bf.rank() == 0:
        first = device.allocate(100)
        memory = device.allocate(NBYTES)
        device.fill(memory, 1, NBYTES, stream)
        call("cuStreamSynchronize", stream)
    handle = bf.broadcast_object(exported(memory) if bf.rank() == 0 else None, 0)
    if bf.rank() == 1:
        memory = opened(handle)
        assert opened(handle) == memory  # counted
        assert device.read(memory, NBYTES, stream) == b"\x01" * NBYTES
        own = device.allocate(NBYTES)
        device.fill(own, 2, NBYTES, stream)
        call("cuMemcpyDtoDAsync_v2", memory, own, NBYTES, stream)
        call("cuStreamSynchronize", stream)
        # It belongs to another process.
        assert code_of(lambda: exported(memory)) == INVALID_VALUE
        assert device.violations() == []
        assert code_of(lambda: call("cuMemFree_v2", memory)) == INVALID_VALUE
        call("cuIpcCloseMemHandle", memory)
        call("cuIpcCloseMemHandle", memory)
        assert code_of(lambda: call("cuIpcCloseMemHandle", memory)) == INVALID_VALUE
        assert code_of(lambda: device.fill(memory, 3, 1, stream)) == INVALID_VALUE
    bf.barrier()
    if bf.rank() == 0:
        assert device.read(memory, NBYTES, stream) == b"\x02" * NBYTES
        assert code_of(lambda: opened(handle)) == INVALID_CONTEXT  # its own
        assert code_of(lambda: exported(device.pinned(b"x"))) == INVALID_VALUE
        call("cuMemFree_v2", memory)
        call("cuMemFree_v2", first)
    bf.barrier()
    if bf.rank() == 1:
        assert code_of(lambda: opened(handle)) == INVALID_VALUE  # it is freed
    return device.violations()


def test_processes_share_memory_and_misuse_is_found():
    owner, other = run_ranks(2, share)
    assert [one.split(":")[0] for one in owner] == [
        "cuIpcOpenMemHandle",
        "cuIpcGetMemHandle",
    ]
    assert "the handle is of this process" in owner[0]
    for found, text in zip(
        other,
        [
            "cuMemFree: memory of another process is closed",
            "cuIpcCloseMemHandle: not the address of a mapping",
            "use after free by cuIpcCloseMemHandle",
            "cuIpcOpenMemHandle: the memory is freed",
        ],
        strict=True,
    ):
        assert text in found


def free_too_early() -> list[str]:
    """Rank 0 frees mapped memory, and rank 1 closes it while a copy runs."""
    device = Device(bf.rank())
    stream = device.stream()
    memory = device.allocate(NBYTES)
    handle = bf.broadcast_object(exported(memory) if bf.rank() == 0 else None, 0)
    if bf.rank() == 1:
        mapped = opened(handle)
        device.fill(mapped, 2, NBYTES, stream)
        bf.barrier()
        bf.barrier()
        call("cuIpcCloseMemHandle", mapped)
    else:
        bf.barrier()
        call("cuMemFree_v2", memory)
        bf.barrier()
    return device.violations()


def test_memory_that_ends_too_early_is_found():
    owner, other = run_ranks(2, free_too_early)
    assert owner[0] == "cuMemFree: 1 processes have mapped the memory"
    assert "race: this write is not ordered after the write by cuMemset" in other[0]


def free_after_a_loss() -> None:
    device = Device(bf.rank())
    memory = device.allocate(NBYTES)
    handle = bf.broadcast_object(
        (exported(memory), os.getpid()) if bf.rank() == 0 else None, 0
    )
    pids = bf.allgather_object(os.getpid())
    if bf.rank() == 1:
        opened(handle[0])
    bf.barrier()
    if bf.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    await_end(pids[1])
    call("cuMemFree_v2", memory)
    raise AssertionError(f"survivor: {device.violations()}")


def test_a_process_that_is_killed_has_ended_its_mappings():
    with pytest.raises(AssertionError, match=r"survivor: \[\]"):
        run_ranks(2, free_after_a_loss, lost=[1])
