"""Algorithms that send codes, made by kernels on the fake's device, beside the host."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import E3M0, device_codes
from bluecomm.device import runtime
from bluecomm.ops import nccl_coded_exchange, nccl_gather
from bluecomm.ops.nccl_call import make_nccl_call
from tests.fakegpu.conftest import IS_THOROUGH
from tests.support.fakegpu.device import NON_BLOCKING, call, made
from tests.support.fakegpu.host_waits import waits_noted
from tests.support.fakegpu.ranks import (
    FakeRuntime,
    place,
    run_on_gpu,
    run_ranks_on_gpus,
    this_memory,
)
from tests.support.fakegpu.training import (
    RANKS,
    SMALL,
    Digits,
    distribute,
    make_batches,
    make_model,
    train_steps,
)
from tests.support.fakegpu.transports import NCCL
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

# Algorithm and options, and the codecs whose kernels it runs on the device.
CASES: dict[str, tuple[Mapping[str, Any], set[str]]] = {
    "bytegrad": ({"algorithm": "bytegrad", **SMALL}, {"min_max"}),
    "qadam": ({"algorithm": "qadam", **SMALL}, {"min_max"}),
    "choco": ({"algorithm": "choco", **SMALL}, {"min_max"}),
    "low precision": (
        {"algorithm": "low_precision_decentralized", **SMALL},
        {"min_max"},
    ),
    "onebit_adam": ({"algorithm": "onebit_adam", **SMALL}, {"scaled_sign"}),
    "zero_one_adam": (
        {"algorithm": "zero_one_adam", "steps_per_doubling": 1, **SMALL},
        {"scaled_sign"},
    ),
    "sparse_loco": (
        {"algorithm": "sparse_loco", "num_steps_per_communication": 2},
        {"chunked_top_k"},
    ),
    "sparse late": (
        {"algorithm": "sparse_loco", "num_steps_per_communication": 2, "overlap": 1},
        {"chunked_top_k"},
    ),
    "diloco": (
        {
            "algorithm": "diloco",
            "codec": E3M0,
            "error_feedback": 0.9,
            "num_steps_per_communication": 2,
        },
        {"e3m0"},
    ),
}
# Algorithms that read values of the device once, at the end of the warm-up.
FREEZING = {"qadam", "onebit_adam", "zero_one_adam"}
# Number of these reads for each parameter.
READS = 4
# Algorithms whose codes NCCL gathers.
GATHERED = ["sparse_loco", "sparse late", "diloco", "choco", "low precision"]
# Algorithms whose codes NCCL carries, and the device adds.
ADDED = ["bytegrad", "qadam", "onebit_adam", "zero_one_adam"]
# Algorithms whose first round waits for the parameters, once for each bucket.
FIRST_WAITS = {"choco", "low precision"}


def train(
    names: list[str], batches: list[torch.Tensor], *, reads_heads: bool = False
) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after a training with each algorithm.

    Args:
        names: The algorithms.
        batches: The batches of all ranks.
        reads_heads: Whether the end of a round waits for the heads of messages.
    """
    found = {}
    for name in names:
        model = place(make_model())
        bf.broadcast_parameters(model)
        optimizer = distribute(model, CASES[name][0])
        device = runtime.current_runtime()
        before = len(device.launched) if isinstance(device, FakeRuntime) else 0
        with waits_noted() as waits:
            train_steps(model, optimizer, batches, may_wait=name in FREEZING)
            optimizer.synchronize()
        has_kernels = bf.rank() not in getattr(device, "without_kernels", {})
        if isinstance(device, FakeRuntime) and has_kernels and not reads_heads:
            reads = READS * len(list(model.parameters())) if name in FREEZING else 0
            assert len(device.memory.host_waits) == reads, name
            buckets = len(list(model.parameters()))
            assert len(waits) <= (buckets if name in FIRST_WAITS else 0), (name, waits)
        if isinstance(device, FakeRuntime):
            check_launched(name, device.launched[before:])
        found[name] = [one.detach().clone() for one in model.parameters()]
    return found


def check_launched(name: str, launched: list[tuple[str, str]]) -> None:
    """Raise unless the kernels of an algorithm have run where kernels can."""
    device = runtime.current_runtime()
    assert isinstance(device, FakeRuntime)
    codecs = set() if bf.rank() in device.without_kernels else CASES[name][1]
    for codec in {"min_max", "scaled_sign", "chunked_top_k", "e3m0"}:
        kernels = {
            kernel.removesuffix("_pieces")
            for module, kernel in launched
            if f".{codec}_" in module
        }
        assert kernels == ({"encode", "decode"} if codec in codecs else set()), name


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, train, list(CASES), make_batches())


def check(found: list[Any], expected: list[Any]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_training_is_that_of_the_host(expected, seed):
    batches = make_batches()
    check(run_ranks_on_gpus(RANKS, train, list(CASES), batches, seed=seed), expected)


def train_in_part(numbers: list[Any]) -> dict[str, list[torch.Tensor]]:
    """Train on the host on rank 0, on a device without kernels on rank 1."""
    batches = [torch.tensor(one, device="cpu") for one in numbers]
    if bf.rank() == 0:
        return train(list(CASES), batches)
    return run_on_gpu(train, [list(CASES), batches], without_kernels={1})


def test_ranks_decide_alone_where_they_encode(expected):
    numbers = [one.tolist() for one in make_batches()]
    check(run_ranks(RANKS, train_in_part, numbers), expected)


def train_through_nccl(numbers: list[Any]) -> dict[str, list[torch.Tensor]]:
    """Train on devices, of which that of rank 1 has no kernels."""
    batches = [torch.tensor(one, device="cpu") for one in numbers]
    train_there = functools.partial(train, reads_heads=True)
    with mock.patch.object(nccl_gather, "make_nccl_call", wraps=make_nccl_call) as made:
        found = run_on_gpu(train_there, [GATHERED, batches], without_kernels={1})
    kinds = {one.args[2] for one in made.call_args_list}
    assert kinds == {"allgather", "neighbor_allgather"}
    return found


def test_nccl_gathers_codes_of_devices_with_and_without_kernels(expected, seed):
    numbers = [one.tolist() for one in make_batches()]
    environment = {**NCCL, "FAKEGPU_SEED": str(seed)}
    found = run_ranks(RANKS, train_through_nccl, numbers, environment=environment)
    check(found, [{name: one[name] for name in GATHERED} for one in expected])


def train_equal_models(batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Train a model that is the same on all ranks, without a broadcast."""
    torch.manual_seed(0)
    model = place(Digits())
    optimizer = distribute(model, {"algorithm": "bytegrad", **SMALL})
    train_steps(model, optimizer, batches, may_wait=True)
    optimizer.synchronize()
    return [one.detach().clone() for one in model.parameters()]


def train_beside_the_host(numbers: list[Any]) -> list[torch.Tensor]:
    """Train on the host on rank 0, and on devices elsewhere."""
    batches = [torch.tensor(one, device="cpu") for one in numbers]
    if bf.rank() == 0:
        return train_equal_models(batches)
    return run_on_gpu(train_equal_models, [batches])


def test_a_rank_may_send_codes_from_the_host_where_nccl_is_in_use():
    numbers = [one.tolist() for one in make_batches()]
    found = run_ranks(RANKS, train_beside_the_host, numbers, environment=NCCL)
    check(found, run_ranks(RANKS, train_equal_models, make_batches()))


def train_twice(
    batches: list[torch.Tensor],
) -> tuple[dict[str, list[torch.Tensor]], dict[str, list[torch.Tensor]]]:
    """Train with sums of codes on the host, since rank 1 has no kernels, and without.

    In both, NCCL adds the gradients of the warm-up, perhaps in another order than the
    host would.
    """
    device = runtime.current_runtime()
    assert isinstance(device, FakeRuntime)
    device.without_kernels = {1}
    on_host = train(ADDED, batches, reads_heads=True)
    device.without_kernels = set()
    patched = mock.patch.object(nccl_coded_exchange, "make_nccl_call")
    with patched as made:
        made.side_effect = make_nccl_call
        there = train(ADDED, batches, reads_heads=True)
    kinds = [one.args[2] for one in made.call_args_list]
    assert {*kinds} == {"alltoall", "allgather"}
    assert kinds.count("alltoall") == kinds.count("allgather")
    return on_host, there


def test_sums_of_codes_through_nccl_are_those_of_the_host(expected, rare_seed):
    """The host sends the codes of all ranks if one of them has no kernels."""
    found = run_ranks_on_gpus(
        *(RANKS, train_twice, make_batches()), seed=rare_seed, environment=NCCL
    )
    for (on_host, there), of_cpu in zip(found, expected, strict=True):
        check(there, on_host)
        check(there["bytegrad"], of_cpu["bytegrad"])


def train_with_survival(numbers: list[Any]) -> dict[str, list[torch.Tensor]]:
    batches = [torch.tensor(one, device="cpu") for one in numbers]
    train_there = functools.partial(train, reads_heads=True)
    return run_on_gpu(train_there, [["diloco"], batches], without_kernels={1})


def test_codes_train_as_on_the_host_in_jobs_that_survive_losses(expected):
    numbers = [one.tolist() for one in make_batches()]
    found = run_ranks(
        *(RANKS, train_with_survival, numbers),
        environment=NCCL,
        survives_losses=True,
    )
    check(found, [{"diloco": one["diloco"]} for one in expected])


def train_two(batches: list[torch.Tensor]) -> list[dict[str, list[torch.Tensor]]]:
    """Train two models, each on a stream of its own, without a check of the codecs."""
    memory = this_memory()
    found = []
    for _ in range(2):
        if memory is not None:
            call("cuCtxSynchronize")
            memory.current_stream = made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
        with mock.patch.object(device_codes, "_difference", return_value=None):
            # Some runs of these tests go through NCCL.
            found.append(train(["bytegrad"], batches, reads_heads=True))
    if memory is not None:
        call("cuCtxSynchronize")
        memory.current_stream = 0
    return found


@pytest.mark.parametrize("through", [{}, NCCL] if IS_THOROUGH else [{}])
def test_each_wait_is_needed(tmp_path, through):
    batches = make_batches()
    expected = run_ranks(RANKS, train_two, batches)

    def run(environment):
        late = {"FAKEGPU_DELAY_US": "2000", **through, **environment}
        check(run_ranks_on_gpus(RANKS, train_two, batches, environment=late), expected)

    waits = waits_of(run, tmp_path / "sites")
    assert any("cuStreamWaitEvent" in one for one in waits)
    assert any("cuEventQuery" in one for one in waits)
    assert not unneeded_waits(run, waits)
