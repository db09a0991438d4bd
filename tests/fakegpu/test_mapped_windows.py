"""Windows whose slots are in memory of the fake's devices, which neighbors map."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.window import device_values
from bluecomm.window.live import find
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import STAGED
from tests.support.fakegpu.window_calls import (
    RANKS,
    end_rounds,
    inputs,
    others,
    use_rounds,
    use_weights,
)
from tests.support.forks import in_fork
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8)


def shared() -> tuple[int, int]:
    """Return how many allocations of this rank are exported, and mappings it has."""
    live = load().live()
    return live["exported memory"], live["mapped memory"]


def is_mapped(name: str) -> bool:
    return find("test", name).device is not None


def use_all_calls(x: torch.Tensor) -> list[torch.Tensor]:
    """Return the values of a window after each call that changes one."""
    found = use_rounds(x, zero_init=x.dtype is torch.float64)
    with bf.win_lock("x"):
        x.add_(1)
    bf.barrier()
    bf.win_get("x", require_mutex=True)
    bf.barrier()  # all have read the own values
    assert bf.win_update("x", 1.0, others()) is x
    found.append(x + 0)
    bf.barrier()
    return [*found, *end_rounds(x), x]


def use_mapped(tensors: list[torch.Tensor], has_device: bool) -> list[object]:
    """Return all values; check where they lie, and that all memory is freed."""
    x = tensors[bf.rank()]
    found = []
    for dtype in TYPES:
        given = (x * 2).abs().to(dtype)
        found.append(use_all_calls(given))
        assert is_mapped("x") is has_device
        if has_device:
            assert shared() == (1, bf.size() - 1)
        bf.win_free("x")
        if has_device:
            assert shared() == (0, 0)
    found.append(use_weights(x * 3))
    assert is_mapped("y") is has_device
    return found  # shutdown frees "y"


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, use_mapped, inputs(), False)


def test_values_are_those_of_the_host(expected, seed):
    found = run_ranks_on_gpus(RANKS, use_mapped, inputs(), True, seed=seed)
    torch.testing.assert_close(found, expected)


class Messages(logging.Handler):
    """Keeps the warnings of bluecomm, but not those of ranks that wait for 10 s."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.module != "monitor":
            self.texts.append(record.getMessage())


REFUSALS = {
    "cuMemAlloc:1=2": "cannot share memory of cuda:1: cuMemAlloc",
    "cuIpcGetMemHandle:1=1": "cannot share memory of cuda:1: cuIpcGetMemHandle",
    "cuIpcOpenMemHandle:1=217": "cannot map memory of the device of rank 0",
    "cuIpcOpenMemHandle:2=205": "cannot map memory of the device of rank 2",
}


def refuse() -> dict[str, list[str]]:
    """Return the warnings of each refusal on rank 1."""
    warnings = {}
    x = torch.full((4,), float(bf.rank()))
    for fault in REFUSALS:
        messages = Messages()
        logging.getLogger("bluecomm").addHandler(messages)
        if bf.rank() == 1:
            set_fake(FAIL=fault)
        bf.win_create(x, "x")
        if bf.rank() == 1:
            set_fake(FAIL="")
        assert not is_mapped("x")
        assert shared() == (0, 0)
        bf.win_put(x, "x")
        bf.barrier()
        total = bf.win_update("x", 1.0, others(), clone=True)
        assert total.tolist() == [3.0] * 4
        bf.win_free("x")
        logging.getLogger("bluecomm").removeHandler(messages)
        warnings[fault] = messages.texts
    # A refusal leaves no memory and no mapping behind.
    bf.win_create(x, "x")
    assert is_mapped("x")
    bf.win_free("x")
    return warnings


def test_a_refusal_on_one_rank_lets_all_use_the_host():
    first, *rest = run_ranks_on_gpus(RANKS, refuse)
    assert all(texts == [] for warnings in rest for texts in warnings.values())
    for fault, text in REFUSALS.items():
        [warning] = first[fault]
        assert f"rank 1 {text}" in warning
        assert "BLUECOMM_DEVICE_TRANSPORT=staged" in warning


def stay_on_host() -> list[str]:
    messages = Messages()
    logging.getLogger("bluecomm").addHandler(messages)
    memory = this_memory()
    tensors = {
        "a tensor of the host": memory.download(torch.ones(2))
        if bf.rank() == 0
        else torch.ones(2),
        "bool": torch.ones(2) > 0,
        "no elements": torch.ones(0),
    }
    for name, tensor in tensors.items():
        bf.win_create(tensor, name)
        assert not is_mapped(name)
    assert shared() == (0, 0)
    bf.win_free()
    logging.getLogger("bluecomm").removeHandler(messages)
    return messages.texts


def stay_staged() -> list[str]:
    messages = Messages()
    logging.getLogger("bluecomm").addHandler(messages)
    bf.win_create(torch.ones(2), "x")
    assert not is_mapped("x")
    logging.getLogger("bluecomm").removeHandler(messages)
    return messages.texts


def test_other_windows_are_on_the_host_without_a_warning():
    assert run_ranks_on_gpus(2, stay_on_host) == [[], []]
    assert run_ranks_on_gpus(2, stay_staged, environment=STAGED) == [[], []]
    assert run_ranks_on_gpus(2, stay_staged, machines=[0, 1]) == [[], []]


def lose_a_rank() -> str:
    """Return the error of a put after rank 2 was killed; the others go on."""
    x = torch.full((4,), float(bf.rank() + 1))
    bf.win_create(x, "x", zero_init=True)
    bf.win_put(x, "x")
    bf.barrier()
    if bf.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(bf.PeerLostError) as raised:
        put_for_ever(x)
    other = 1 - bf.rank()
    bf.win_put(x * 2, "x", dst_weights=[other])
    # Rank 2 has left its last value.
    while True:
        total = bf.win_update("x", 1.0, others(), clone=True)
        if total[0].item() == x[0].item() + 2 * (other + 1) + 3:
            break
    bf.shutdown()
    # Others may still use the memory, so it stays; the mappings have ended.
    assert shared() == (1, 0)
    raise AssertionError(f"survivor: {raised.value} {load().violations()}")


def put_for_ever(x: torch.Tensor) -> None:
    while True:
        bf.win_put(x, "x", dst_weights=[2])


def test_the_values_of_a_lost_rank_stay():
    with pytest.raises(AssertionError) as failure:
        run_ranks_on_gpus(RANKS, lose_a_rank, lost=[2], report_s=DEADLINE_S)
    assert str(failure.value).count("survivor: win_put 'x'") == 2
    assert str(failure.value).count(" []\n") >= 2


def end_in_a_child() -> list[float]:
    """Return an update after a child of fork has ended what it has of a window."""
    x = torch.full((3,), float(bf.rank() + 1))
    bf.win_create(x, "x", zero_init=True)
    bf.barrier()
    window = find("test", "x")

    def end() -> None:
        window.unmap()
        window.free()

    in_fork(end)
    assert shared() == (1, 1)
    bf.win_put(x, "x")
    bf.barrier()
    total = bf.win_update("x", 1.0, others())
    bf.shutdown()
    assert shared() == (0, 0)
    return total.tolist()


def test_a_child_ends_nothing_and_shutdown_frees_all():
    assert run_ranks_on_gpus(2, end_in_a_child) == [[3.0] * 3] * 2


def update_last() -> None:
    x = torch.ones(5)
    bf.win_create(x, "x", zero_init=True)
    bf.win_put(x, "x")
    bf.barrier()
    bf.win_update("x", clone=True)  # its kernels may not have ended


def test_shutdown_frees_nothing_that_the_last_update_reads():
    run_ranks_on_gpus(2, update_last)


class HandsSlotsOver:
    """The engine's window; declares the slots that it hands to other ranks.

    The fake does not see what other processes do with these slots. So the host reads or
    writes a slot when a word hands it over. That races with device work whose end the
    host has not seen.

    Args:
        name: Name of the window.
    """

    def __init__(self, name: str) -> None:
        window = find("test", name)
        values = window.device
        assert values is not None
        self._values, self._native, self._slots = values, window.native, values.slots
        self._reserved = 0
        self._begun: dict[int, int] = {}
        window.native = values._native = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def put(
        self, address: int, targets: list[tuple[int, float]], *rest: Any, **options: Any
    ) -> int:
        for rank, _ in targets:
            self._arrives(rank)
        return self._native.put(address, targets, *rest, **options)

    def publish_sum(self, rank: int, *rest: Any) -> bool:
        self._arrives(rank)
        return self._native.publish_sum(rank, *rest)

    def reserve(self) -> int:
        self._reserved = self._native.reserve()
        return self._reserved

    def publish(self, own: int) -> None:
        self._declare(self._slots.published(self._reserved).data_ptr(), "published")
        self._native.publish(own)

    def update(self, *arguments: Any, **options: Any) -> None:
        keeps = arguments[6]
        if keeps:
            self._declare(self._slots.published(self._reserved).data_ptr(), "updated")
        self._native.update(*arguments, **options)

    def begin_get(self, rank: int) -> int | None:
        slot = self._native.begin_get(rank)
        assert slot is not None
        self._begun[rank] = self._slots._values[rank] + slot * self._slots._stride
        return slot

    def get(self, sources: list[tuple[int, float]], *rest: Any) -> int:
        for rank, _ in sources:
            self._declare(self._begun[rank], "read", is_write=True)
            self._give_back(rank)
        return self._native.get(sources, *rest)

    def take(self, rank: int) -> tuple[bool | None, int]:
        self._give_back(rank)
        return self._native.take(rank)

    def _arrives(self, rank: int) -> None:
        slot = self._native.back_slot(rank)
        assert slot is not None
        self._declare(
            self._slots._mailboxes[rank] + slot * self._slots._stride, "arrived"
        )

    def _give_back(self, rank: int) -> None:
        left = self._values._left[rank]
        if left.is_front and left.value is not None:
            self._declare(left.value.data_ptr(), "given back", is_write=True)

    def _declare(self, address: int, how: str, *, is_write: bool = False) -> None:
        label = f"a slot that is {how}".encode()
        load().cuda.fakegpu_host_access(address, self._slots._nbytes, is_write, label)


@contextlib.contextmanager
def without(skipped: str, seen: set[str]) -> Iterator[None]:
    """Skip a wait of ``DeviceValues``, named after its callers; add all to ``seen``."""
    wait = device_values.wait_on_host

    def maybe(*arguments: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        names: list[str] = []
        while frame is not None and frame.f_code.co_filename == device_values.__file__:
            names.insert(0, frame.f_code.co_name)
            frame = frame.f_back
        name = ".".join(names)
        seen.add(name)
        if name != skipped:
            wait(*arguments)

    with mock.patch.object(device_values, "wait_on_host", maybe):
        yield


def use_each_wait() -> None:
    """Make calls that wait, and none that would wait for the same work instead."""
    x = torch.ones(5)
    second, memory = bf.rank() == 1, this_memory()
    bf.win_create(x, "x", zero_init=True)
    HandsSlotsOver("x")
    bf.barrier()
    bf.win_put(x, "x")
    bf.barrier()
    bf.win_update("x", clone=True)
    bf.barrier()
    if second:
        bf.win_put(x, "x")
        bf.win_accumulate(x, "x")  # to what is pending
    bf.barrier()
    if not second:
        bf.win_update("x", clone=True)  # gives the front slot back
    bf.barrier()
    if second:
        bf.win_accumulate(x, "x")  # to what has been taken
    bf.barrier()
    if not second:
        bf.win_update("x", clone=True)  # copies the front slot
    bf.barrier()
    bf.win_update("x")
    with bf.win_lock("x"):
        x.add_(1)
    bf.win_put(x, "x")
    bf.barrier()
    with memory.on_stream(memory.new_stream()):
        bf.win_update("x", clone=True)
    bf.win_get("x")
    bf.barrier()
    bf.win_put(x, "x")
    bf.barrier()
    bf.win_update("x", clone=True)  # reads the front slot
    bf.win_free("x")


# The waits of DeviceValues.
WAITS = (
    *("publish._finish._settle", "put._fill._finish._settle"),
    *("accumulate._finish._settle", "accumulate._fill._finish._settle"),
    *("get._finish._settle", "update._finish._settle"),
    *("update._await_readers", "get._await_readers"),
    *("update._take._finish._settle", "settle._await_readers"),
)


def skip_each_wait() -> tuple[set[str], list[list[str]]]:
    """Return the waits of this rank, and the violations without each of ``WAITS``."""
    waits: set[str] = set()
    with without("", waits):
        use_each_wait()
    assert load().violations() == []
    found = []
    for wait in WAITS:
        with without(wait, set()):
            use_each_wait()
        bf.barrier()
        found.append(load().violations())
        load().reset()
    return waits, found


def test_each_wait_is_needed():
    """Without it, a slot is handed over while the device uses it, or is freed."""
    ranks = run_ranks_on_gpus(2, skip_each_wait)
    assert set.union(*(waits for waits, _ in ranks)) == {*WAITS}
    both = zip(*(found for _, found in ranks), strict=True)
    texts = [[*first, *second] for first, second in both]
    unneeded = [wait for wait, found in zip(WAITS, texts, strict=True) if not found]
    assert unneeded == []
    assert all("race" in text for found in texts for text in found), texts
