"""Algorithms, windows and groups of torch on CUDA tensors, against the host."""

from __future__ import annotations

from tests.gpu.compare import compare_bodies
from tests.gpu.job import Check, Job, cases_of
from tests.support.fakegpu.training import train_scaled
from tests.support.fakegpu.transports import NCCL, STAGED

# A training has 4 steps with a rate of 0.1, on sums of at most 16 products. float32
# rounds by 6e-8 of a value near 1; torch does not use TF32 unless asked. So the host
# and a GPU, which adds in another order and has its own tanh and exp, differ by about
# 1e-6 in a gradient, and algorithms with momentum or tracking add up a few of these.
# The rest is room for optimizers that divide by small roots.
TOLERANCE = 1e-3
# A code has few levels, such as 256 between the extremes or the sign alone. Where a
# value lies between two levels, a difference in its last bit chooses the next one. Each
# of 4 steps with a rate of 0.1 may then differ by about a tenth of a gradient near 0.2.
TOLERANCE_OF_CODES = 0.1


def algorithms(job: Job, table: str, environment: dict[str, str]) -> str:
    cases = cases_of("tests.fakegpu.test_optimizers")
    named = getattr(cases, table)
    if not job.is_real:
        named = dict(list(named.items())[:2])
    return compare_bodies(
        *(job, cases.RANKS, [cases.train], named, cases.make_batches()),
        environment=environment,
        rtol=0.0,
        atol=TOLERANCE if table == "COMMON" else TOLERANCE_OF_CODES,
    )


def uneven_algorithms(job: Job, environment: dict[str, str]) -> str:
    """Compare what ranks end with, where it depends on their speed."""
    cases = cases_of("tests.fakegpu.test_optimizers")
    found = job.run_ranks(
        cases.RANKS, cases.in_background, cases.make_batches(), environment=environment
    )
    cases.check_mixed_models(found)
    return f"ranks mix their models with {', '.join(sorted(found[0]))}"


def windows(job: Job, body: str, environment: dict[str, str]) -> str:
    cases = cases_of("tests.fakegpu.test_windows")
    return compare_bodies(
        *(job, cases.RANKS, [getattr(cases, body)], cases.inputs()),
        environment=environment,
    )


def groups(job: Job, environment: dict[str, str]) -> str:
    cases = cases_of("tests.fakegpu.test_torch_operations")
    equal = compare_bodies(
        *(job, cases.RANKS, [cases.run_all], cases.inputs()),
        environment=environment,
        in_group=True,
    )
    return f"{equal}: {', '.join(cases.OPERATIONS)}"


def scaler(job: Job) -> str:
    cases = cases_of("tests.fakegpu.test_optimizers")
    named = {"gradient_allreduce": cases.COMMON["gradient_allreduce"]}
    return compare_bodies(
        *(job, cases.RANKS, [train_scaled], named, cases.make_batches()),
        environment=STAGED,
        rtol=0.0,
        atol=TOLERANCE,
    )


def survival(job: Job) -> str:
    cases = cases_of("tests.fakegpu.test_nccl_survival")
    faults = {2: (2, "kill")}
    found = job.run_ranks(
        *(3, cases.lose, cases.call_all, faults),
        environment=NCCL,
        survives_losses=True,
        lost=faults,
    )
    assert found[0][0] == found[1][0]
    for i in range(3, cases.CALLS):
        assert found[0][0][i] == cases.expected_of([0, 1], i)
    return "two ranks go on through NCCL without the third"


def _algorithms(table: str, environment: dict[str, str]) -> Check:
    return Check(lambda job: algorithms(job, table, environment), limit_s=150.0)


CHECKS = {
    "common algorithms, staged": _algorithms("COMMON", STAGED),
    "common algorithms, nccl": _algorithms("COMMON", NCCL),
    "other algorithms, staged": _algorithms("OTHERS", STAGED),
    "algorithms that depend on speed, staged": Check(
        lambda job: uneven_algorithms(job, STAGED), limit_s=150.0
    ),
    "algorithms that depend on speed, nccl": Check(
        lambda job: uneven_algorithms(job, NCCL), limit_s=150.0
    ),
    "windows, staged": Check(lambda job: windows(job, "use_all", STAGED)),
    "windows, by CUDA IPC": Check(lambda job: windows(job, "use_mapped", {})),
    "GradScaler": Check(scaler),
    "survival, nccl": Check(survival),
    "groups of torch, staged": Check(lambda job: groups(job, STAGED)),
    "groups of torch, nccl": Check(lambda job: groups(job, NCCL)),
}
