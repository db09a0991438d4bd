"""Failures around calls of NCCL: its absence, kernels of the program, and forks."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
import warnings
from collections.abc import Iterator
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.device import runtime
from bluecomm.runtime import device_transport, nccl_calls
from tests.support.deadlines import DEADLINE_S
from tests.support.errors import error_text
from tests.support.fakegpu.device import call
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.ranks import FakeRuntime, run_ranks_on_gpus
from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.fakegpu.transports import NCCL
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 2
# The error of a rank that finds no NCCL.
MISSING = "NCCL cannot be loaded: libnccl.so.2: cannot open shared object file"
# The reason that CUDA gives for an error of an earlier kernel.
OF_THE_PROGRAM = "a kernel or copy that the program has started before failed"


# -- no NCCL ---------------------------------------------------------------------------


@contextlib.contextmanager
def without_nccl() -> Iterator[None]:
    """Let this rank find no NCCL. The fake's is in the process, where it is found."""
    missing = RuntimeError(MISSING)
    with (
        mock.patch.object(nccl_calls, "nccl_library", side_effect=missing),
        mock.patch.object(device_transport, "nccl_library", side_effect=missing),
    ):
        yield


def call_without_nccl() -> str:
    with without_nccl() if bf.rank() == 1 else contextlib.nullcontext():
        return error_text(lambda: bf.allreduce(torch.ones(4)))


def test_a_missing_nccl_is_an_error_on_all_ranks():
    here, there = run_ranks_on_gpus(RANKS, call_without_nccl, environment=NCCL)
    expected = f"rank 1 cannot call NCCL on CUDA device 1: {MISSING}"
    assert there.startswith(f"RuntimeError: {expected}")
    assert here.startswith("MismatchError: allreduce")
    assert expected in here


def choose_by_itself(old: bool) -> tuple[list[float], list[str]]:
    """Return a sum, and the warnings, of ranks of which the second has no good NCCL.

    Args:
        old: Whether that rank's NCCL is too old. Otherwise it has none.
    """
    rank = int(os.environ["BLUECOMM_RANK"])
    memory = DeviceMemory(rank)
    if old and rank == 1:
        set_fake(NCCL_VERSION="21304")
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("bluecomm")
    log.addHandler(handler)
    with (
        runtime.use(FakeRuntime(memory)),
        kernels(memory, makes_tensors=True),
        without_nccl() if rank == 1 and not old else contextlib.nullcontext(),
    ):
        bf.init()
        found = bf.allreduce(torch.full((4,), rank + 1.0), op=bf.Sum).tolist()
        bf.allreduce(torch.ones(4))  # warns once
        bf.shutdown()
    log.removeHandler(handler)
    texts = [one.getMessage() for one in records if one.levelno >= logging.WARNING]
    return found, texts


@pytest.mark.parametrize("old", [False, True])
def test_without_a_setting_ranks_warn_once_and_use_the_host(old):
    found = run_ranks(
        *(RANKS, choose_by_itself, old),
        environment={"FAKEGPU_SEED": "0"},
        initialize=False,
    )
    reason = "NCCL 2.13.4 is" if old else MISSING
    for rank, (total, texts) in enumerate(found):
        assert total == [3.0] * 4
        of_the_path = [text for text in texts if "memory of the host" in text]
        assert len(of_the_path) == (rank == 0)
        for text in of_the_path:
            assert "rank 1 on" in text
            assert reason in text


# -- kernels of the program ------------------------------------------------------------


def fail_before_a_call(fault: str) -> list[str]:
    """Return the errors of calls, before which a kernel of rank 1 has failed."""
    x = torch.ones(4)
    bf.allreduce(x).tolist()
    bf.barrier()  # both devices have finished it
    if bf.rank() == 1:
        set_fake(FAIL=fault)
    found: list[str] = []
    results: list[torch.Tensor] = []
    deadline = time.monotonic() + DEADLINE_S
    # The first call may end before its rank or the other one notices.
    while not found or found[-1] == "no error":
        assert time.monotonic() < deadline
        found.append(error_text(lambda: results.append(bf.allreduce(x))))
    # CUDA ends all work of a device that has failed, but the fake does not. So the
    # tensors live until it is done.
    call("cuCtxSynchronize")
    return found


@pytest.mark.parametrize("fault", ["cuEventRecord:1=700", "cuEventQuery:1=700"])
def test_an_error_of_the_programs_kernels_is_reported_as_theirs(fault):
    found = run_ranks_on_gpus(RANKS, fail_before_a_call, fault, environment=NCCL)
    assert OF_THE_PROGRAM in found[1][-1]
    function = fault.partition(":")[0]
    where = f"{function} on CUDA device 1 of rank 1: CUDA_ERROR_ILLEGAL_ADDRESS"
    assert where in found[1][-1]
    assert "set CUDA_LAUNCH_BLOCKING=1 to find it" in found[1][-1]
    assert "Error" in found[0][-1]


# -- forks -----------------------------------------------------------------------------


def fork_between_calls() -> tuple[str, list[float]]:
    """Return the error of a call of a forked child, and a later sum of the parent."""
    x = torch.ones(4)
    bf.allreduce(x)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, error_text(lambda: bf.allreduce(x)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready = select.select([reader], [], [], DEADLINE_S)[0]
        text = os.read(reader, 1 << 16).decode() if ready else "no answer"
    finally:
        os.close(reader)
        os.kill(child, 9)
        os.waitpid(child, 0)
    return text, bf.allreduce(x, op=bf.Sum).tolist()


def test_a_forked_child_gets_an_error_and_the_parent_goes_on():
    found = run_ranks_on_gpus(RANKS, fork_between_calls, environment=NCCL)
    for rank, (text, total) in enumerate(found):
        assert text.startswith("ShutdownError: this process (")
        assert f"is a fork of rank {rank} (pid " in text
        assert text.endswith("only the rank itself communicates")
        assert total == [float(RANKS)] * 4
