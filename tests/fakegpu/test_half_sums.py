"""Sums of float16 and bfloat16 of neighbors through NCCL, by a kernel of Numba."""

from __future__ import annotations

import contextlib
import logging
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.device.runtime import current_runtime
from bluecomm.device.staging_table import staging_of
from bluecomm.ops import weighted_sum
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import NCCL
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS = 3
MODULE = "bluecomm.ops.kernels.half_sum_cuda"
# Each rank adds two received values to its own. All three, and the average on the host,
# are rounded once.
TOLERANCE = {"rtol": 2.0**-7, "atol": 2.0**-9}


def inputs() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    return [torch.randn(7, 9, generator=random) for _ in range(RANKS)]


def for_all_sizes() -> contextlib.AbstractContextManager[object]:
    """Return a context in which kernels also add tensors of few values."""
    return mock.patch.object(weighted_sum, "_LEAST_BY_KERNEL", 1)


def weights() -> dict[str, object]:
    rank = bf.rank()
    return {
        "self_weight": 0.25,
        "src_weights": {(rank - 1) % RANKS: 0.5, (rank + 1) % RANKS: 0.125},
        "dst_weights": {(rank - 1) % RANKS: 1.0, (rank + 1) % RANKS: 1.0},
    }


def average(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return averages, one of them in place and one waited for on another stream."""
    memory, x = this_memory(), tensors[bf.rank()]
    on_other = contextlib.nullcontext()
    if memory is not None:
        on_other = memory.on_stream(memory.new_stream())
    with for_all_sizes():
        half, brain = x.half(), x.bfloat16()
        results = [bf.neighbor_allreduce(half, **weights())]
        bf.neighbor_allreduce_(brain)
        handle = bf.neighbor_allreduce_nonblocking(brain, **weights())
        with on_other:
            results += [handle.wait() * 2]
            if memory is not None:
                memory.synchronize()
        # No multiple of 8 bytes from the beginning of its memory.
        results += [brain, bf.neighbor_allreduce(brain.view(-1)[1:], **weights())]
    return results


def average_and_note(
    tensors: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[str]]:
    """Return averages, and the kernels that have added them."""
    results = average(tensors)
    launched = current_runtime().launched
    assert {module for module, _ in launched} <= {MODULE}
    return results, [kernel for _, kernel in launched]


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, average, inputs())


def test_a_kernel_adds(expected, seed):
    found = run_ranks_on_gpus(
        RANKS, average_and_note, inputs(), seed=seed, environment=NCCL
    )
    torch.testing.assert_close([one for one, _ in found], expected, **TOLERANCE)
    # Each kernel is first started once to compile it.
    kernels = ["add_float16"] * 2 + ["add_bfloat16"] * 4
    assert [kernels_of_rank for _, kernels_of_rank in found] == [kernels] * RANKS


def add_without_numba(
    tensors: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[str]]:
    current_runtime().without_kernels = {bf.rank()}
    return average_and_note(tensors)


def test_without_numba_torch_adds(expected):
    found = run_ranks_on_gpus(RANKS, add_without_numba, inputs(), environment=NCCL)
    torch.testing.assert_close([one for one, _ in found], expected, **TOLERANCE)
    assert [kernels for _, kernels in found] == [[]] * RANKS


def add_although_one_fails(
    tensors: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[str]]:
    """Return averages, and the warnings; the kernel of one rank cannot be compiled."""

    def fail(*_):
        raise ValueError("no such processor")

    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())
    logging.getLogger("bluecomm").addHandler(handler)
    with contextlib.ExitStack() as patched:
        if bf.rank() == 1:
            patched.enter_context(mock.patch.object(current_runtime(), "launch", fail))
        results = average(tensors)
    logging.getLogger("bluecomm").removeHandler(handler)
    return results, texts


def test_torch_adds_where_a_kernel_cannot_be_compiled(expected):
    found = run_ranks_on_gpus(RANKS, add_although_one_fails, inputs(), environment=NCCL)
    torch.testing.assert_close([one for one, _ in found], expected, **TOLERANCE)
    warnings = [
        f"tensors of {dtype} on cuda:1 are added in several passes, because the kernel "
        "fails (no such processor)"
        for dtype in (torch.float16, torch.bfloat16)
    ]
    assert [texts for _, texts in found] == [[], warnings, []]


def capture_first(x: torch.Tensor) -> tuple[str, list[float], int]:
    """Return the error of a first call under capture, and what a later one does."""
    error, x = "", x.bfloat16()
    this_memory().synchronize()
    with for_all_sizes():
        with this_memory().capturing():
            try:
                bf.neighbor_allreduce_nonblocking_(x, name="captured")
            except RuntimeError as raised:
                error = str(raised)
        result = bf.neighbor_allreduce(x).tolist()
    return error, result, len(current_runtime().launched)


def test_a_capture_keeps_no_kernel_from_later_calls():
    found = run_ranks_on_gpus(RANKS, capture_first, torch.ones(4), environment=NCCL)
    for error, result, launches in found:
        assert "captures a CUDA graph" in error
        assert (result, launches) == ([1.0] * 4, 2)


def add_without(
    missing: list[int], own: torch.Tensor, row: torch.Tensor
) -> list[float]:
    """Return a sum of which some tensors have not come; their memory has NaN."""
    with for_all_sizes():
        summed = weighted_sum.WeightedSum(
            staging_of(own), own.shape, own.dtype, 0.5, [0.25, -0.125]
        )
    for i in {0, 1} - {*missing}:
        summed.received[i] = row
    for i in missing:
        summed.received[i] = torch.nan
    summed.write(own, own, missing)
    assert current_runtime().launched[-1] == (MODULE, "add_bfloat16")
    return own.tolist()


@pytest.mark.parametrize(
    ("missing", "expected"), [([0], 0.5), ([1], 2.75), ([0, 1], 1.25)]
)
def test_the_own_tensor_takes_the_weights_of_lost_neighbors(missing, expected):
    own = torch.tensor([2.0, -0.0]).bfloat16()
    row = torch.tensor([8.0, -0.0]).bfloat16()
    [found] = run_ranks_on_gpus(1, add_without, missing, own, row)
    assert found == [expected, 0.0]


def add_few(x: torch.Tensor) -> int:
    bf.neighbor_allreduce(x.bfloat16())
    return len(current_runtime().launched)


def test_torch_adds_few_values():
    found = run_ranks_on_gpus(RANKS, add_few, torch.ones(4), environment=NCCL)
    assert found == [0] * RANKS


def test_each_wait_of_a_stream_is_needed(expected, tmp_path):
    def run(environment):
        return run_ranks_on_gpus(
            RANKS, average, inputs(), environment={**NCCL, **environment}
        )

    def check(environment):
        torch.testing.assert_close(run(environment), expected, **TOLERANCE)

    waits = waits_of(run, tmp_path / "sites")
    of_streams = [one for one in waits if "cuStreamWaitEvent" in one]
    assert len(of_streams) == 2
    assert not unneeded_waits(check, of_streams)
