"""Operations of bluecomm on CUDA tensors: results, types, streams, graphs, losses."""

from __future__ import annotations

from unittest import mock

import torch

import bluecomm as bf
from bluecomm.device.nccl import nccl_library
from bluecomm.device.runtime import current_runtime
from bluecomm.device.staging_table import staging_of
from bluecomm.ops import weighted_sum
from bluecomm.ops.kernels.half_sum import adds_there
from tests.gpu.compare import compare_bodies
from tests.gpu.dtypes import use_all_types
from tests.gpu.job import Check, Job, NotRunError, cases_of
from tests.gpu.losses import LOST, lose_a_rank
from tests.support.fakegpu.ranks import this_memory
from tests.support.fakegpu.transports import NCCL, STAGED
from tests.support.half_sums import assert_same_bits, half_sum

RANKS = 3
# Torch reads it once, so it is set before the ranks start.
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
DEADLINE_S = 60.0


def versions(job: Job) -> str:
    """Return what figures depend on."""
    if not job.is_real:
        return f"torch {torch.__version__}"
    gpu = torch.cuda.get_device_properties(0)
    return (
        f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}, "
        f"{gpu.total_memory / 2**30:.0f} GiB; torch {torch.__version__}, CUDA "
        f"{torch.version.cuda}, NCCL {nccl_library().version}; bluecomm "
        f"{bf.__version__}"
    )


def add_up(x: torch.Tensor) -> torch.Tensor:
    """Return a sum; the least that can work."""
    return bf.allreduce(x * (bf.rank() + 1), op=bf.Sum)


def first_call(job: Job, environment: dict[str, str]) -> str:
    for result in job.run_ranks(2, add_up, torch.ones(1000), environment=environment):
        assert torch.equal(result, torch.full((1000,), 3.0))
    return "an allreduce of two ranks is right"


def through_nccl(job: Job) -> str:
    cases = cases_of("tests.fakegpu.test_nccl_operations")
    bodies = cases.BODIES if job.is_real else cases.BODIES[:1]
    return compare_bodies(job, cases.RANKS, bodies, cases.inputs(), environment=NCCL)


def through_the_host(job: Job) -> str:
    cases = cases_of("tests.fakegpu.test_operations")
    bodies = [cases.run_all, cases.overlap] if job.is_real else [cases.overlap]
    return compare_bodies(job, cases.RANKS, bodies, cases.inputs(), environment=STAGED)


def types(job: Job, environment: dict[str, str]) -> str:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randint(0, 4, (6, 5), generator=generator).float() for _ in range(RANKS)
    ]
    # Values are integers up to 3, so all sums of three ranks are exact in each type. An
    # average of them, or a weighted sum, is rounded once or twice to 8 bits of mantissa
    # (bfloat16): by at most 2 * 2**-8 = 0.8 %.
    return compare_bodies(
        *(job, RANKS, [use_all_types], tensors),
        environment=environment,
        rtol=1e-2,
    )


def add_halves(
    own: torch.Tensor, rows: list[torch.Tensor], weights: list[float]
) -> tuple[str | None, list[torch.Tensor]]:
    """Return why no kernel adds, or sums: of all values, and of all but the first."""
    staging, found = staging_of(own), []
    if problem := current_runtime().why_no_kernels():
        return problem, found
    assert adds_there(staging, own.dtype), "the kernel cannot be compiled"
    with mock.patch.object(weighted_sum, "_LEAST_BY_KERNEL", 1):
        for first in (0, 1):
            part = own[first:]
            summed = weighted_sum.WeightedSum(
                staging, part.shape, own.dtype, 0.3, weights
            )
            for row, memory in zip(rows, summed.received, strict=True):
                memory.copy_(row[first:])
            result = torch.zeros(part.numel(), dtype=own.dtype)
            summed.write(part, result)
            found.append(result)
    return None, found


def half_sums(job: Job) -> str:
    """Compare the bits of sums by kernels with those of the formula."""
    patterns = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    random = torch.Generator().manual_seed(0)
    weights = [0.25, -0.7, 1.3]
    for dtype in (torch.float16, torch.bfloat16):
        own = patterns.view(dtype)
        orders = [torch.randperm(len(own), generator=random) for _ in weights]
        rows = [patterns[order].view(dtype) for order in orders]
        [(problem, found)] = job.run_ranks(1, add_halves, own, rows, weights)
        if problem is not None:
            raise NotRunError(problem)
        expected = half_sum(own, 0.3, rows, weights)
        for first, result in enumerate(found):
            assert_same_bits(result, expected[first:])
    return "float16 and bfloat16 have the bits of the formula"


def capture() -> tuple[str, list[float]]:
    """Return the error of a call under capture, and the result of a later one."""
    x = torch.ones(4)
    bf.allreduce(x)
    this_memory().synchronize()
    error = ""
    with this_memory().capturing():
        try:
            bf.allreduce_nonblocking_(x, name="captured")
        except RuntimeError as raised:
            error = str(raised)
    return error, bf.allreduce(x, op=bf.Sum).tolist()


def graphs(job: Job, environment: dict[str, str]) -> str:
    for error, later in job.run_ranks(2, capture, environment=environment):
        assert "captures a CUDA graph" in error, error
        assert later == [2.0] * 4
    return "refused, and later calls work"


def lost_rank(job: Job, environment: dict[str, str]) -> str:
    count = job.size(1 << 24)
    found = job.run_ranks(
        *(RANKS, lose_a_rank, count, DEADLINE_S), environment=environment, lost=[LOST]
    )
    errors = [one for one in found if one is not None]
    assert len(errors) == RANKS - 1
    for error, seconds in errors:
        assert error.startswith("PeerLostError"), error
        assert not job.is_real or seconds < DEADLINE_S, f"after {seconds:.1f} s"
    slowest = max(seconds for _, seconds in errors)
    return f"PeerLostError {slowest:.2f} s after the end of the rank"


def of_each_path(name, run, environment=None):
    """Return a check of tensors through NCCL, and one of staged tensors."""
    return {
        f"{name}, {path}": Check(
            lambda job, variables=variables: run(job, variables),
            environment=environment or {},
        )
        for path, variables in (("nccl", NCCL), ("staged", STAGED))
    }


CHECKS = {
    "versions": Check(versions),
    **of_each_path("first call", first_call),
    "operations and streams, nccl": Check(through_nccl, limit_s=150.0),
    "operations, staged": Check(through_the_host),
    **of_each_path("types", types),
    "sums of 16 bits": Check(half_sums),
    **of_each_path("lost rank", lost_rank),
    **of_each_path("CUDA graphs", graphs),
    "expandable segments, nccl": Check(
        through_nccl, limit_s=150.0, environment=EXPANDABLE
    ),
    "expandable segments, staged": Check(through_the_host, environment=EXPANDABLE),
}
