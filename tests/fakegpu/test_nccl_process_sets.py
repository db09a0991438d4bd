"""Process sets that end beside others, whose calls go on through NCCL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bluecomm as bf
from tests.support.fakegpu.ranks import run_ranks_on_gpus

pytestmark = pytest.mark.mp
RANKS = 3
NCCL = {"BLUECOMM_DEVICE_TRANSPORT": "nccl"}


def error_of(call: Callable[[], Any]) -> str:
    """Return the type and the text of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def check_others(x: torch.Tensor) -> None:
    """Check that calls of all ranks, and of another set, go on."""
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    other = bf.ProcessSet([0, 1, 2])
    assert bf.allreduce(x, op=bf.Sum, process_set=other).tolist() == [RANKS] * 4


def free_a_set_that_others_use() -> str:
    """Return the error of a call of a set that rank 0 frees."""
    x = torch.ones(4)
    pair = bf.ProcessSet([0, 1])
    found = ""
    if bf.rank() < 2:
        assert bf.allreduce(x, op=bf.Sum, process_set=pair).tolist() == [2] * 4
    if bf.rank() == 1:  # waits for rank 0, which frees the set instead of calling
        waiting = bf.allreduce_nonblocking(x, process_set=pair, name="waiting")
    bf.barrier()
    if bf.rank() == 0:
        pair.free()
    if bf.rank() == 1:
        found = error_of(waiting.wait)
        assert "ShutdownError" in error_of(lambda: bf.allreduce(x, process_set=pair))
    check_others(x)
    return found


def test_a_set_that_a_member_frees_ends_alone():
    found = run_ranks_on_gpus(RANKS, free_a_set_that_others_use, environment=NCCL)
    assert found[1].startswith("ShutdownError")
    assert "has freed the process set" in found[1]


def free_a_set_with_a_waiting_call() -> str:
    """Return the error of a call of rank 0, which frees the set while it waits."""
    x = torch.ones(4)
    pair = bf.ProcessSet([0, 1])
    found = ""
    if bf.rank() == 0:
        waiting = bf.allreduce_nonblocking(x, process_set=pair, name="waiting")
        pair.free()
        found = error_of(waiting.wait)
    bf.barrier()
    if bf.rank() == 1:
        found = error_of(lambda: bf.allreduce(x, process_set=pair, name="waiting"))
    check_others(x)
    return found


def test_a_call_that_waits_ends_with_its_set_only():
    found = run_ranks_on_gpus(RANKS, free_a_set_with_a_waiting_call, environment=NCCL)
    for text in found[:2]:
        assert text.startswith("ShutdownError")
