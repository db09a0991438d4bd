"""Ranks that call the fake's NCCL themselves, without bluecomm's world."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from typing import Any

from tests.support.deadlines import wait_until
from tests.support.fakegpu.device import Device
from tests.support.fakegpu.library import Config, UniqueId, load
from tests.support.ranks import run_ranks

INT32, FLOAT32 = 2, 7
INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS = 4, 5, 6, 7
COUNT = 3


class Rank:
    """One rank: a device, a stream, a communicator, and buffers of three items."""

    def __init__(
        self,
        rank: int,
        size: int,
        unique_id: UniqueId,
        *,
        blocking: int = 0,
        device: int | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self.device = Device(rank if device is None else device)
        self.nccl = self.device.libraries.nccl
        self.stream = self.device.stream()
        self.comm = ctypes.c_void_p()
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22907, blocking)
        result = self.nccl.ncclCommInitRankConfig(
            ctypes.byref(self.comm), size, unique_id, rank, ctypes.byref(config)
        )
        assert result == (0 if blocking else IN_PROGRESS)

    def settle(self, comm: Any = None) -> int:
        """Poll until the communicator is not in progress; return its error."""
        error = ctypes.c_int(IN_PROGRESS)

        def is_settled() -> bool:
            self.nccl.ncclCommGetAsyncError(comm or self.comm, ctypes.byref(error))
            return error.value != IN_PROGRESS

        wait_until(is_settled, "NCCL is in progress", look_s=0)
        return error.value

    def await_error(self) -> int:
        """Wait until the communicator has failed; return its error."""
        error = 0

        def has_failed() -> bool:
            nonlocal error
            error = self.settle()
            return error != 0

        wait_until(has_failed, "the communicator has not failed", look_s=0.001)
        return error

    def buffer(self, values: list[Any], letter: str = "i") -> int:
        memory = self.device.allocate(len(values) * struct.calcsize(letter))
        self.write(memory, values, letter)
        return memory

    def write(self, memory: int, values: list[Any], letter: str = "i") -> None:
        data = struct.pack(f"{len(values)}{letter}", *values)
        self.device.copy(memory, self.device.pinned(data), len(data), self.stream)

    def values(self, memory: int, count: int = COUNT, letter: str = "i") -> list[Any]:
        data = self.device.read(memory, count * struct.calcsize(letter), self.stream)
        return list(struct.unpack(f"{count}{letter}", data))

    def do(self, name: str, *arguments: Any, comm: Any = None) -> int:
        """Call an operation, and settle if it is in progress."""
        ends = (comm or self.comm, self.stream)
        result: int = getattr(self.nccl, name)(*arguments, *ends)
        return self.settle(comm) if result == IN_PROGRESS else result

    def group(self, *operations: Any) -> int:
        self.nccl.ncclGroupStart()
        for name, *arguments in operations:
            assert getattr(self.nccl, name)(*arguments, self.comm, self.stream) == 0
        result: int = self.nccl.ncclGroupEnd()
        return self.settle() if result == IN_PROGRESS else result

    def destroy(self) -> list[str]:
        """End the communicator in order, and return all violations."""
        self.nccl.ncclCommFinalize(self.comm)
        assert self.settle() == 0
        assert self.nccl.ncclCommDestroy(self.comm) == 0
        return self.device.violations()


class WrongCalls:
    """The results of wrong calls of a rank, and the violations that they cause."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.found: dict[str, tuple[int, str]] = {}

    def note(self, name: str, result: int) -> None:
        """Note the result of a call, and its violation, if there is one."""
        texts = self._device.violations()
        self.found[name] = (result, texts[-1] if texts else "")
        self._device.libraries.reset()


def new_id() -> UniqueId:
    unique_id = UniqueId()
    assert load().nccl.ncclGetUniqueId(ctypes.byref(unique_id)) == 0
    return unique_id


def run(
    body: Callable[..., Any],
    world: int = 3,
    seed: int = 1,
    environment: dict[str, str] | None = None,
    report_s: float = 3.0,
    **options: Any,
) -> list[Any]:
    """Run ``body(rank, size, id, **options)`` on ranks without bluecomm's world."""
    where = {"FAKEGPU_SEED": str(seed), **(environment or {})}
    return run_ranks(
        world,
        _on_rank,
        world,
        bytes(new_id()),
        body,
        options,
        environment=where,
        initialize=False,
        report_s=report_s,
    )


def _on_rank(
    world: int, unique_id: bytes, body: Callable[..., Any], options: dict[str, Any]
) -> Any:
    rank = int(os.environ["BLUECOMM_RANK"])
    return body(rank, world, UniqueId.from_buffer_copy(unique_id), **options)
