"""Algorithms that send codes, made by kernels on the fake's device, beside the host."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext as ok
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.bench import compress
from bluecomm.compression import (
    E3M0,
    ErrorFeedback,
    HalfCast,
    MinMaxUInt8,
    ScaledSign,
    device_codes,
)
from bluecomm.compression.device_codes import _warn_once, encodes_there
from bluecomm.device import runtime, staging
from bluecomm.device.point import wait_on_host
from bluecomm.device.staging_table import staging_of
from bluecomm.ops import (
    compressed_allreduce,
    nccl_coded_exchange,
    nccl_compressed_allreduce,
    nccl_gather,
)
from bluecomm.ops.nccl_call import make_nccl_call
from bluecomm.optim import coded_differences
from tests.fakegpu.conftest import IS_THOROUGH
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.device import NON_BLOCKING, call, made
from tests.support.fakegpu.library import load
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.ranks import (
    FakeRuntime,
    place,
    run_on_gpu,
    run_ranks_on_gpus,
    this_memory,
)
from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.fakegpu.training import (
    RANKS,
    SMALL,
    Digits,
    distribute,
    make_batches,
    make_model,
    train_steps,
)
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.other_orders import wait_in_other_orders
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
NCCL = {"BLUECOMM_DEVICE_TRANSPORT": "nccl"}
# Algorithms whose first round waits for the parameters, once for each bucket.
FIRST_WAITS = {"choco", "low precision"}


@contextlib.contextmanager
def waits_noted() -> Iterator[list[str]]:
    """Note the operations for whose copies from the device the host waits."""
    waits = []

    def note(gate: Any, operation: str, timeout_s: float) -> None:
        if gate.poll() is None:
            waits.append(operation)
        wait_on_host(gate, operation, timeout_s)

    with mock.patch.object(staging, "wait_on_host", note):
        yield waits


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


class Broken(HalfCast):
    """Fails on the host of rank 2, except with the sample that checks its kernels."""

    def encode(self, values: torch.Tensor, into: torch.Tensor) -> int:
        if bf.rank() == 2 and len(values) < 1000 and staging_of(values) is None:
            raise ValueError("a broken codec")
        return super().encode(values, into)


def add_compressed(numbers: list[list[float]]) -> list[torch.Tensor]:
    """Return sums and averages of this rank's values, of which some are infinite."""
    values = torch.tensor(numbers[bf.rank()])
    device = runtime.current_runtime()
    found = []
    # Three slices, and the last one has fewer values than there are ranks.
    with mock.patch.object(compressed_allreduce, "_SLICE", 1000):
        for without_kernels in (set(), {1}):
            if isinstance(device, FakeRuntime):
                device.without_kernels = without_kernels
                nccl_compressed_allreduce._known.clear()
            for codec in (MinMaxUInt8(256), ScaledSign(), HalfCast()):
                handles = [
                    bf.compressed_allreduce_nonblocking(one, codec, op=op)
                    for one in (values, values.half(), values[:0])
                    for op in (bf.Sum, bf.Average)
                ]
                found += [handle.wait() for handle in handles[::-1]]
            named = wait_in_other_orders(
                lambda number: bf.compressed_allreduce_nonblocking(
                    values + number, HalfCast(), "x"
                )
            )
            apart = [
                bf.compressed_allreduce(values + number, HalfCast())
                for number in range(2)
            ]
            torch.testing.assert_close(named, apart, rtol=0, atol=0, equal_nan=True)
            with pytest.raises(
                bf.MismatchError, match=r"codec E3M0.*got .*MinMaxUInt8"
            ):
                bf.compressed_allreduce(values, [E3M0(), MinMaxUInt8()][bf.rank() // 2])
        # Not all devices encode now.
        with pytest.raises((ValueError, bf.MismatchError), match="a broken codec"):
            bf.compressed_allreduce(values, Broken(), "x")
        found.append(bf.compressed_allreduce(values, HalfCast(), "x"))
    if isinstance(device, FakeRuntime):
        slices = 3 * 2 * (3 + 3 + 1) + 2 * 2 * 3
        assert bf.stats().devices.nccl_calls == slices * 2
    return found


def test_compressed_allreduce_through_nccl_is_that_of_the_host():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(RANKS, 2002, generator=generator)
    values[1, 1500] = torch.inf
    expected = run_ranks(RANKS, add_compressed, values.tolist())
    found = run_ranks_on_gpus(RANKS, add_compressed, values.tolist(), environment=NCCL)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def fail_and_repeat(numbers: list[list[float]]) -> list[torch.Tensor]:
    """Return sums under a name of which calls have failed before on all ranks."""
    values = torch.tensor(numbers[bf.rank()])
    faults: list[tuple[dict[str, Any], str]] = [
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"tensor": values.int()}, "cannot encode values of type"),
        ({"tensor": values[1:]}, "have made different calls"),
    ]
    if this_memory() is not None:
        there = torch.tensor(numbers[1], device="cpu")
        faults.append(({"tensor": there}, "called alltoall"))
    found = []
    for fault, match in faults:
        given = {"tensor": values, **(fault if bf.rank() == 1 else {})}
        with pytest.raises((bf.MismatchError, ValueError), match=match):
            bf.compressed_allreduce(**given, codec=MinMaxUInt8(), name="same")
        found.append(bf.compressed_allreduce(values, MinMaxUInt8(), name="same"))
    return found[:3]


def test_a_compressed_allreduce_that_fails_leaves_its_name_whole():
    numbers = torch.randn(RANKS, 40).tolist()
    expected = run_ranks(RANKS, fail_and_repeat, numbers)
    found = run_ranks_on_gpus(RANKS, fail_and_repeat, numbers, environment=NCCL)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


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


@pytest.fixture
def device():
    memory = DeviceMemory()
    found = FakeRuntime(memory)
    _warn_once.cache_clear()
    with runtime.use(found), kernels(memory, makes_tensors=True):
        yield found
    call("cuCtxSynchronize")


def warnings_of(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno > logging.INFO]


def test_without_kernels_the_host_encodes_after_one_warning(device, caplog):
    device.without_kernels = {0}
    where = staging_of(torch.zeros(1))
    for _ in range(2):
        assert not encodes_there(E3M0(), where, "auto", DEADLINE_S)
        assert not encodes_there(MinMaxUInt8(), where, "host", DEADLINE_S)
        assert not encodes_there(MinMaxUInt8(), None, "auto", DEADLINE_S)
    [text] = warnings_of(caplog)
    assert "on the host, because numba.cuda finds no toolkit; install blue" in text


@pytest.mark.parametrize("kernel", ["encode", "decode"])
def test_a_device_with_other_bits_does_not_encode(device, caplog, monkeypatch, kernel):
    launch = device.launch

    def differ(module, name, blocks, arguments):
        launch(module, name, blocks, arguments)
        if name == f"{kernel}_pieces":
            arguments[1][60].add_(1)

    where = staging_of(torch.zeros(1))
    assert encodes_there(MinMaxUInt8(), where, "auto", DEADLINE_S)
    monkeypatch.setattr(device, "launch", differ)
    assert not encodes_there(MinMaxUInt8(), where, "auto", DEADLINE_S)
    [text] = warnings_of(caplog)
    what = {"encode": "codes", "decode": "decoded values"}[kernel]
    assert f"because {what} of MinMaxUInt8(chunk=65536) on cuda:0 differ from" in text


def test_a_kernel_that_cannot_be_compiled_does_not_encode(device, caplog, monkeypatch):
    def fail(*_):
        raise ValueError("no such processor")

    monkeypatch.setattr(device, "launch", fail)
    where = staging_of(torch.zeros(1))
    assert not encodes_there(MinMaxUInt8(), where, "auto", DEADLINE_S)
    [text] = warnings_of(caplog)
    assert "fails on cuda:0 (no such processor); install" in text


def test_a_residual_follows_the_values(device):
    """As after a checkpoint, or when kernels are missing."""
    memory, codec = device.memory, ScaledSign()
    on_host = torch.tensor([1.0, -3.0, 0.5, 2.0], device="cpu")
    there = memory.upload(on_host)
    feedback, alone = ErrorFeedback(0.5), ErrorFeedback(0.5)
    for values in (on_host, there, there, on_host):
        nbytes = codec.encoded_nbytes(4, values.dtype)
        code = values.new_empty(nbytes, dtype=torch.uint8)
        assert feedback.start_encode(codec, "x", values, code)
        expected = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        assert alone.encode(codec, "x", on_host, expected)
        assert code.tolist() == expected.tolist()


def test_what_is_not_finite_leaves_the_residual(device):
    codec, feedback = ScaledSign(), ErrorFeedback()
    code = torch.empty(codec.encoded_nbytes(2, torch.float32), dtype=torch.uint8)
    for values, are_finite in (([1.0, -3.0], True), ([1.0, torch.nan], False)):
        well = feedback.start_encode(codec, "x", torch.tensor(values), code)
        assert bool(well) is are_finite
        assert feedback.state_dict()["x"].tolist() == [-1.0, -1.0]


def test_a_loaded_residual_is_not_written_while_another_stream_reads_it(device):
    """The codec adds on a stream of bluecomm's, and a state is loaded on another."""
    codec, feedback = ScaledSign(), ErrorFeedback()
    code = torch.empty(codec.encoded_nbytes(4, torch.float32), dtype=torch.uint8)
    feedback.load_state_dict({"x": torch.ones(4)})
    where = staging_of(code)
    loaded = where.point()
    with where.side_stream_context():
        where.follow(loaded)
        feedback.start_encode(codec, "x", torch.ones(4), code)
    call("cuCtxSynchronize")
    assert load().violations() == []
    assert feedback.state_dict()["x"].tolist() == [0.0] * 4


def test_a_residual_is_not_freed_while_its_state_is_copied(device):
    """The codec adds on a stream of bluecomm's, and a state is saved on another."""
    codec, feedback = ScaledSign(), ErrorFeedback()
    code = torch.empty(codec.encoded_nbytes(4, torch.float32), dtype=torch.uint8)
    values = torch.tensor([1.0, -3.0] * 2)
    where = staging_of(code)
    written = where.point()
    with where.side_stream_context():
        where.follow(written)
        feedback.start_encode(codec, "x", values, code)
        encoded = where.point()
    where.follow(encoded)
    saved = feedback.state_dict()
    del feedback
    call("cuCtxSynchronize")
    assert load().violations() == []
    assert saved["x"].tolist() == [-1.0, -1.0] * 2


def send_infinities() -> None:
    """Have rank 1 send infinities in its second step; all ranks are told."""
    for options, match in (
        (
            {"algorithm": "choco"},
            r"not finite, or too large .*'first\.weight' on rank 1",
        ),
        (
            {"algorithm": "sparse_loco", "num_steps_per_communication": 1},
            r"not finite: 'first\.weight' on rank 1",
        ),
        ({"algorithm": "bytegrad"}, r"not finite, so byte.*'first\.weight' on rank 1"),
    ):
        model = place(make_model())
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        for number in range(2):
            with pytest.raises(FloatingPointError, match=match) if number else ok():
                optimizer.zero_grad()
                loss = sum(one.sum() for one in model.parameters())
                if number and bf.rank() == 1:
                    loss = loss + model.first.weight[0, 0] * torch.inf
                loss.backward()
                optimizer.step()
                optimizer.synchronize()


def test_infinities_are_named():
    run_ranks_on_gpus(RANKS, send_infinities)


# With what a kernel fails, and whether training goes on: the states of neighbors do not
# belong together any more.
FAILING: dict[str, tuple[Mapping[str, Any], bool]] = {
    "bytegrad": ({"algorithm": "bytegrad"}, True),
    "choco": ({"algorithm": "choco", **SMALL}, False),
    "sparse_loco": (
        {"algorithm": "sparse_loco", "num_steps_per_communication": 1, **SMALL},
        False,
    ),
}


def fail(*_: Any) -> None:
    raise RuntimeError("no such kernel")


def fail_kernels() -> None:
    """Let a kernel fail in a hook or step of rank 1; all ranks are told at once."""
    broken = mock.patch.object(runtime.current_runtime(), "launch", fail)
    for options, goes_on in FAILING.values():
        model = place(make_model())
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        for fails in (False, True, False)[: 2 + goes_on]:
            with (
                broken if fails and bf.rank() == 1 else ok(),
                pytest.raises(Exception, match="no such kernel") if fails else ok(),
            ):
                optimizer.zero_grad()
                sum(one.sum() for one in model.parameters()).backward()
                optimizer.step()
                optimizer.synchronize()


def time_out() -> None:
    """Let the host of rank 1 not get the values of its first round in time."""
    model = place(make_model())
    bf.broadcast_parameters(model)
    optimizer = distribute(model, {"algorithm": "choco", **SMALL})
    late = mock.patch.object(
        coded_differences,
        "values_on_host",
        side_effect=bf.CommunicationTimeout("too late"),
    )

    def step() -> None:
        sum(one.sum() for one in model.parameters()).backward()
        optimizer.step()
        optimizer.synchronize()

    with (
        late if bf.rank() == 1 else ok(),
        pytest.raises(bf.CommunicationTimeout, match="too late"),
    ):
        step()


def fail_to_send() -> None:
    fail_kernels()
    time_out()


def test_what_fails_on_one_rank_is_an_error_of_all():
    """A wait for the deadline fails the test."""
    run_ranks_on_gpus(RANKS, fail_to_send)


def fail_between_calls() -> None:
    """Let the kernels that encode, or those that add, fail on rank 1 between calls."""
    device = runtime.current_runtime()
    launch, broken = device.launch, ""

    def fail_if_broken(module: str, kernel: str, *rest: Any) -> None:
        if broken and bf.rank() == 1 and kernel.startswith(broken):
            raise RuntimeError("no such kernel")
        launch(module, kernel, *rest)

    with mock.patch.object(device, "launch", fail_if_broken):
        for broken in ("", "encode", "", "decode", ""):
            with pytest.raises(Exception, match="no such kernel") if broken else ok():
                mean = bf.compressed_allreduce(torch.full((8,), 2.0), ScaledSign())
                assert mean.tolist() == [2.0] * 8


def meet_faults() -> None:
    send_infinities()
    fail_to_send()
    fail_between_calls()


def test_faults_through_nccl_are_those_of_the_host():
    run_ranks_on_gpus(RANKS, meet_faults, environment=NCCL)


def test_codecs_are_timed_on_a_device(device, monkeypatch):
    # The others make tensors with ``device=``, which the fake does not see.
    names = ("min_max_uint8", "scaled_sign", "e3m0", "chunked_top_k", "quantized_top_k")
    kept = {name: compress.CODECS[name] for name in names}
    monkeypatch.setattr(compress, "CODECS", kept)
    timed = compress.measure(8192, 1, "cuda")
    assert [one.name for one in timed] == [*compress.YARDSTICKS, *names]
    assert all(len(one.encode_ms) == 1 for one in timed)
    assert len({module for module, _ in device.launched}) == len(names)
    device.without_kernels = {0}
    assert compress._problem_with_gpu() == "numba.cuda finds no toolkit"
