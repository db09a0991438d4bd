"""Optimizers whose models are on the fake's device, compared with those on the host."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.compression import E3M0
from bluecomm.device import runtime
from bluecomm.ops import start
from bluecomm.ops.nccl_call import make_nccl_call
from bluecomm.optim.algorithms.gradient_allreduce import GradientAllreduce
from bluecomm.optim.buckets.bucket import build_buckets
from bluecomm.optim.buckets.gradient_message import message_of
from bluecomm.optim.registry import algorithm_names, get_algorithm, names_on_devices
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
    STEPS,
    Digits,
    distribute,
    make_batches,
    make_model,
    train_scaled,
    train_steps,
    train_unevenly,
)
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

# Algorithm and options; a step has several buckets, and a round every one or two steps.
COMMON: dict[str, Mapping[str, Any]] = {
    "gradient_allreduce": {"algorithm": "gradient_allreduce", **SMALL},
    "fp16": {"compression": bf.Compression.fp16, **SMALL},
    "adasum": {"op": bf.Adasum, **SMALL},
    "allreduce, cta": {"algorithm": "allreduce", "order": "cta", **SMALL},
    "allreduce, atc": {"algorithm": "allreduce", "order": "atc"},
    "neighbor, cta": {"algorithm": "neighbor_allreduce", "order": "cta"},
    "neighbor, atc": {"algorithm": "neighbor_allreduce", "order": "atc", **SMALL},
}
# Their results depend on the speed of ranks.
UNPREDICTABLE = {
    name for name in algorithm_names() if get_algorithm(name).depends_on_speed
}
OTHERS: dict[str, Mapping[str, Any]] = {
    **{
        name: {"algorithm": name}
        for name in names_on_devices()
        if name not in ("allreduce", "gradient_allreduce", "neighbor_allreduce")
        and name not in UNPREDICTABLE
    },
    **{
        name: {"algorithm": name, "num_steps_per_communication": 2}
        for name in ("desloc", "diloco", "gasloc", "noloco", "sparse_loco")
    },
    "streaming": {
        "algorithm": "diloco",
        "num_steps_per_communication": 4,
        "fragments": 2,
        "overlap": 1,
        "mixing": 0.5,
    },
    "bytegrad": {"algorithm": "bytegrad", **SMALL},
    "outer step in 4 bits": {
        "algorithm": "diloco",
        "codec": E3M0,  # made on each rank, because codecs cannot be pickled
        "error_feedback": 0.9,
        "num_steps_per_communication": 2,
    },
    "sparse late": {
        "algorithm": "sparse_loco",
        "num_steps_per_communication": 2,
        "overlap": 1,
    },
    "demo": {"algorithm": "demo", "chunk": 4, "k": 3, **SMALL},
    "powersgd": {"algorithm": "powersgd", "start_step": 1, **SMALL},
    "momentum in 8 bits": {"algorithm": "qadam", **SMALL},
    "local steps": {"algorithm": "zero_one_adam", "steps_per_doubling": 1, **SMALL},
    "one_peer": {"algorithm": "neighbor_allreduce", "topology": "one_peer"},
    "two passes": {"backward_passes_per_step": 2, **SMALL},
    "uneven": {"algorithm": "local_sgd", "uneven_inputs": True},
}


# Their backward passes or steps read values of the device; see docs/optimizer.md.
WAITING = {"onebit_adam", "powersgd", "qadam", "zero_one_adam"}


def train(
    cases: Mapping[str, Mapping[str, Any]], batches: list[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after a training with each algorithm."""
    found = {}
    for name, options in cases.items():
        model = place(make_model(has_unused=name in COMMON))
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        passes = options.get("backward_passes_per_step", 1)
        may_wait = options.get("algorithm") in WAITING
        train_steps(model, optimizer, batches, passes, may_wait=may_wait)
        optimizer.synchronize()
        found[name] = [one.detach().clone() for one in model.parameters()]
    return found


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, train, {**COMMON, **OTHERS}, make_batches())


def check(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for mine, others in zip(found, expected, strict=True):
        for name in mine:
            torch.testing.assert_close(mine[name], others[name], rtol=0, atol=0)


def test_training_is_that_of_the_host(expected, seed):
    check(run_ranks_on_gpus(RANKS, train, COMMON, make_batches(), seed=seed), expected)


def test_other_algorithms_train_as_on_the_host(expected):
    check(run_ranks_on_gpus(RANKS, train, OTHERS, make_batches()), expected)


def test_jobs_that_survive_losses_train_as_on_the_host(expected):
    """Their gradients and results have memory of their own, for a repetition."""
    found = run_ranks_on_gpus(
        RANKS, train, COMMON, make_batches(), survives_losses=True
    )
    check(found, expected)


@pytest.mark.parametrize("machines", [[0, 0, 1], [0, 0, 0]])
def test_machines_train_as_on_the_host(machines):
    """The thread of callbacks runs the parts of an exchange behind the first one."""
    names = ["bytegrad", "choco", "low_precision_decentralized", "onebit_adam", "qadam"]
    cases = {name: {"algorithm": name, "hierarchical": True, **SMALL} for name in names}
    arguments = cases, make_batches()
    expected = run_ranks(RANKS, train, *arguments, machines=machines)
    check(run_ranks_on_gpus(RANKS, train, *arguments, machines=machines), expected)


# -- algorithms whose results depend on the speed of ranks -----------------------------


def mix(names: list[str], batches: list[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after steps that change none, from unequal ones."""
    found = {}
    for name in names:
        model = place(make_model())
        plain = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = bf.DistributedOptimizer(plain, model, algorithm=name)
        for _ in range(16):
            # No put or get is later than the next round of the rank that it is for.
            bf.barrier()
            loss = nn.functional.cross_entropy(model(batches[0]), batches[1])
            bf.barrier()
            loss.backward()
            optimizer.step()
        if name == "async":
            optimizer.abort()
        optimizer.synchronize()
        found[name] = [one.detach().clone() for one in model.parameters()]
    return found


def agree(batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parameters before and after a training by quorum_diloco."""
    model = place(make_model())
    bf.broadcast_parameters(model)
    before = [one.detach().clone() for one in model.parameters()]
    optimizer = distribute(
        model, {"algorithm": "quorum_diloco", "num_steps_per_communication": 1}
    )
    train_steps(model, optimizer, batches, may_wait=True)
    optimizer.abort()
    return before + [one.detach().clone() for one in model.parameters()]


def initial_parameters(rank: int) -> list[torch.Tensor]:
    torch.manual_seed(rank)
    return [one.detach() for one in Digits().parameters()]


def in_background(batches: list[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    names = sorted(UNPREDICTABLE - {"quorum_diloco"})
    assert names == ["async", "pull_get", "push_sum", "win_put"]
    return {**mix(names, batches), "quorum_diloco": agree(batches)}


@pytest.mark.parametrize("transport", ["staged", "nccl"])
def test_algorithms_whose_ranks_do_not_wait_mix_their_models(transport):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": transport}
    found = run_ranks_on_gpus(
        RANKS, in_background, make_batches(), environment=environment
    )
    check_mixed_models(found)


def check_mixed_models(found: list[dict[str, list[torch.Tensor]]]) -> None:
    """Raise an AssertionError unless ranks have mixed their models."""
    unmixed = [initial_parameters(rank) for rank in range(RANKS)]
    means = [torch.stack(of_ranks).mean(0) for of_ranks in zip(*unmixed, strict=True)]
    for mine in found:
        torch.testing.assert_close(mine["async"], means)
        assert all(map(torch.equal, mine["async"], found[0]["async"]))
        # Old values may count again, except with push_sum.
        torch.testing.assert_close(mine["push_sum"], means, rtol=0, atol=0.05)
        for name in ("pull_get", "win_put"):
            torch.testing.assert_close(mine[name], found[0][name], rtol=0, atol=0.1)
        before, after = mine["quorum_diloco"][:4], mine["quorum_diloco"][4:]
        assert all(map(torch.equal, after, found[0]["quorum_diloco"][4:]))
        assert not any(map(torch.equal, before, after))


# -- GradScaler ------------------------------------------------------------------------


def test_a_gradient_scaler_skips_the_same_steps_on_all_ranks():
    cases = {
        name: {**COMMON, **OTHERS}[name]
        for name in ("gradient_allreduce", "bytegrad", "powersgd", "qadam", "demo")
    }
    expected = run_ranks(RANKS, train_scaled, cases, make_batches())
    check(run_ranks_on_gpus(RANKS, train_scaled, cases, make_batches()), expected)


def train_through_nccl(
    cases: Mapping[str, Mapping[str, Any]], batches: list[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    with mock.patch.object(start, "make_nccl_call", wraps=make_nccl_call) as made:
        found = train(cases, batches)
    kinds = {one.args[2] for one in made.call_args_list}
    assert kinds == {"broadcast", "allreduce", "neighbor_allreduce"}
    return found


def test_averages_of_parameters_through_nccl_are_those_of_the_host(expected, seed):
    names = [
        *("allreduce, cta", "allreduce, atc", "neighbor, cta", "neighbor, atc"),
        *("one_peer", "gradient_allreduce"),
    ]
    cases = {name: {**COMMON, **OTHERS}[name] for name in names}
    found = run_ranks_on_gpus(
        RANKS,
        train_through_nccl,
        cases,
        make_batches(),
        seed=seed,
        environment={"BLUECOMM_DEVICE_TRANSPORT": "nccl"},
    )
    for mine, others in zip(found, expected, strict=True):
        # NCCL may add in another order than the host.
        torch.testing.assert_close(mine, {name: others[name] for name in names})


def train_in_threads(batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parameters after backward passes in another thread than the steps."""
    model = place(make_model())
    bf.broadcast_parameters(model)
    optimizer = distribute(model, SMALL)
    memory = this_memory()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        for number in range(STEPS):
            images, labels = batches[2 * (STEPS * bf.rank() + number) :][:2]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            executor.submit(run_backward, memory, loss).result(DEADLINE_S)
            optimizer.step()
    return [one.detach().clone() for one in model.parameters()]


def run_backward(memory: DeviceMemory | None, loss: torch.Tensor) -> None:
    if memory is None:
        loss.backward()
        return
    call("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", memory.ordinal))
    with kernels(memory):
        loss.backward()


@pytest.mark.parametrize("survives_losses", [False, True])
def test_gradients_may_be_computed_in_another_thread(survives_losses):
    """As autograd does on CUDA devices."""
    batches = make_batches()
    expected = run_ranks(RANKS, train_in_threads, batches)
    found = run_ranks_on_gpus(
        RANKS, train_in_threads, batches, survives_losses=survives_losses
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_ranks_without_data_send_zeros():
    batches = make_batches()
    expected = run_ranks(RANKS, train_unevenly, batches)
    found = run_ranks_on_gpus(RANKS, train_unevenly, batches)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# -- what is where ---------------------------------------------------------------------


class Halves(nn.Module):
    """Two models, of which only the first one is moved to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.here = Digits(), Digits()


def train_all_halves(
    names: list[str], batches: list[torch.Tensor], others: list[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    return {name: train_halves(name, batches, others) for name in names}


def train_halves(
    name: str, batches: list[torch.Tensor], others: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Train a model whose second half has the batches ``others``, on the host."""
    torch.manual_seed(bf.rank())
    model = Halves()
    place(model.there)
    bf.broadcast_parameters(model)
    optimizer = distribute(model, {**COMMON, **OTHERS}[name])
    for number in range(STEPS):
        at = 2 * (STEPS * bf.rank() + number)
        optimizer.zero_grad()
        losses = [
            nn.functional.cross_entropy(half(images), labels)
            for half, (images, labels) in (
                (model.there, batches[at : at + 2]),
                (model.here, others[at : at + 2]),
            )
        ]
        torch.autograd.backward(losses)
        optimizer.step()
    optimizer.synchronize()
    return [one.detach().clone() for one in model.parameters()]


def train_halves_on_the_host(
    names: list[str], batches: list[Any]
) -> dict[str, list[torch.Tensor]]:
    return train_all_halves(names, batches, batches)


def train_halves_apart(
    names: list[str], numbers: list[Any]
) -> dict[str, list[torch.Tensor]]:
    """Train with one half on the device and one on the host."""
    memory = this_memory()
    assert memory is not None
    host = [torch.tensor(one, device="cpu") for one in numbers]
    return train_all_halves(names, [memory.upload(one) for one in host], host)


def test_parameters_may_be_on_the_host_and_on_the_device():
    # Results of most others depend on the division into buckets.
    names = ["gradient_allreduce", "neighbor, cta", "demo"]
    batches = make_batches()
    expected = run_ranks(RANKS, train_halves_on_the_host, names, batches)
    numbers = [one.tolist() for one in batches]
    found = run_ranks_on_gpus(RANKS, train_halves_apart, names, numbers)
    check(found, expected)


def divide_differently() -> None:
    model = Halves()
    place(model.there if bf.rank() == 0 else model)
    with pytest.raises(
        bf.MismatchError,
        match=r"'here\.second\.bias' is torch\.float32 of shape \(4,\) on device 1 of "
        r"its model on rank 0, but torch\.float32 of shape \(4,\) on rank 1",
    ):
        distribute(model, {})


def test_ranks_that_divide_a_model_differently_are_told():
    run_ranks_on_gpus(2, divide_differently)


def train_beside_the_host(numbers: list[Any]) -> dict[str, list[torch.Tensor]]:
    """Train on the device, except on rank 0."""
    batches = [torch.tensor(one, device="cpu") for one in numbers]
    names = ("powersgd", "momentum in 8 bits", "demo", "choco")
    cases = {**COMMON, **{name: OTHERS[name] for name in names}}
    if bf.rank() == 0:
        return train(cases, batches)
    return run_on_gpu(train, [cases, batches])


def test_some_ranks_may_have_no_device(expected):
    numbers = [one.tolist() for one in make_batches()]
    check(run_ranks(RANKS, train_beside_the_host, numbers), expected)


def share_state(batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the state and the parameters after a broadcast and one more training."""
    model = place(make_model())
    plain = torch.optim.SGD(model.parameters(), lr=0.1 + bf.rank(), momentum=0.9)
    if bf.rank() == 1:
        images, labels = batches[:2]
        nn.functional.cross_entropy(model(images), labels).backward()
        plain.step()
    bf.broadcast_parameters(model.state_dict(), 1)
    bf.broadcast_optimizer_state(plain, 1)
    state = [plain.state[one]["momentum_buffer"] for one in model.parameters()]
    found = [
        *(one.clone() for one in state),
        *(one.detach() for one in model.parameters()),
    ]
    bf.allreduce_parameters(model)
    with bf.averaged(model):
        found += [one.detach().clone() for one in model.parameters()]
    return found


def test_parameters_and_state_are_broadcast():
    batches = make_batches()
    expected = run_ranks(RANKS, share_state, batches)
    found = run_ranks_on_gpus(RANKS, share_state, batches)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# -- refusals --------------------------------------------------------------------------


class OfTheUser(GradientAllreduce):
    """An algorithm that does not say whether it works on a device."""


def refuse() -> None:
    model = place(make_model())
    for options, text in (
        (
            {"algorithm": OfTheUser},
            r"the algorithm OfTheUser does not take parameters on a device yet, and "
            r"'first\.weight' is on .*; call model\.cpu\(\) before wrapping, or use "
            r"one of allreduce, ",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            distribute(model, options)
    words = place(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(ValueError, match=r"'weight' is sparse, and .* on the CPU only"):
        distribute(words, {})
    distribute(words, {"sparse_as_dense": True})


def test_what_is_not_covered_is_refused_by_name():
    run_ranks_on_gpus(2, refuse)


# -- order -----------------------------------------------------------------------------


def train_two(batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Train two models, each on a stream of its own, and return their parameters."""
    models = [place(make_model()) for _ in range(2)]
    optimizers = [
        distribute(model, COMMON[name])
        for model, name in zip(
            models, ("gradient_allreduce", "neighbor, atc"), strict=True
        )
    ]
    for model in models:
        bf.broadcast_parameters(model)
    memory = this_memory()
    streams = []
    if memory is not None:
        call("cuCtxSynchronize")
        streams = [made("cuStreamCreateWithPriority", NON_BLOCKING, 0) for _ in models]
    for number in range(2):
        images, labels = batches[2 * (STEPS * bf.rank() + number) :][:2]
        for which, optimizer in enumerate(optimizers):
            if memory is not None:
                memory.current_stream = streams[which]
            optimizer.zero_grad()
            output = models[which](images)
            nn.functional.cross_entropy(output, labels).backward()
            optimizer.step()
    found = []
    for which, optimizer in enumerate(optimizers):
        if memory is not None:
            memory.current_stream = streams[which]
        optimizer.synchronize()
        found += [one.detach().clone() for one in models[which].parameters()]
    if memory is not None:
        call("cuCtxSynchronize")
        memory.current_stream = 0
    return found


def test_each_wait_is_needed(tmp_path):
    """Training without one of the waits of the backend races, or differs.

    Page-locked memory of one model may be reused by the other one, whose stream does
    not wait for that of the first.
    """
    batches = make_batches()
    expected = run_ranks(RANKS, train_two, batches)

    def check(environment):
        late = {"FAKEGPU_DELAY_US": "2000", **environment}
        found = run_ranks_on_gpus(RANKS, train_two, batches, environment=late)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)

    waits = waits_of(check, tmp_path / "sites")
    assert any("cuStreamWaitEvent" in one for one in waits)
    assert any("cuEventQuery" in one for one in waits)
    assert not unneeded_waits(check, waits)


@pytest.fixture
def memory(monkeypatch):
    for name in [name for name in os.environ if name.startswith("FAKEGPU_")]:
        monkeypatch.delenv(name)
    memory = DeviceMemory()
    with runtime.use(FakeRuntime(memory)), kernels(memory, makes_tensors=True):
        yield memory
    call("cuCtxSynchronize")


@pytest.mark.parametrize("waits_for_all", [True, False])
def test_a_message_waits_for_each_stream_that_wrote_gradients(memory, waits_for_all):
    """Autograd computes a gradient on the stream of its part of the forward pass."""
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    named = [("b", parameters[1]), ("a", parameters[0])]
    [bucket] = build_buckets(named, prefix="x", bucket_nbytes=1 << 20)
    bucket.lay_out_gradients(counters=1)
    call("cuCtxSynchronize")
    for position, parameter in enumerate(parameters):
        memory.current_stream = made("cuStreamCreateWithPriority", NON_BLOCKING, 0)
        parameter.grad = torch.full((3,), position + 1.0)
        bucket.gradients.keep(position)
    if not waits_for_all:
        bucket.gradients.take_streams()
    message = message_of(bucket.gradients, bf.Compression.none, keeps_input=False)
    assert any("race" in text for text in load().violations()) is not waits_for_all
    message.sent.wait("test", DEADLINE_S)
    if waits_for_all:
        views = [slot.view_of(message.sent.values).tolist() for slot in bucket.slots]
        assert views == [[1.0] * 3, [2.0] * 3]
    call("cuCtxSynchronize")


@pytest.mark.parametrize("waits_for_all", [True, False])
def test_kernels_wait_for_each_stream_that_wrote_gradients(memory, waits_for_all):
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    named = [("b", parameters[1]), ("a", parameters[0])]
    [bucket] = build_buckets(named, prefix="x", bucket_nbytes=1 << 20)
    bucket.lay_out_gradients()
    call("cuCtxSynchronize")
    for position, parameter in enumerate(parameters):
        memory.current_stream = memory.new_stream()
        parameter.grad = torch.full((3,), position + 1.0)
        bucket.gradients.keep(position)
    if waits_for_all:
        bucket.gradients.follow_streams()
    with contextlib.suppress(AssertionError):  # the fake refuses a read that races
        total = bucket.gradients.values.sum()
        assert total.item() == 9.0
    assert any("race" in text for text in load().violations()) is not waits_for_all
    call("cuCtxSynchronize")


@pytest.mark.parametrize("compression", [bf.Compression.none, bf.Compression.fp16])
def test_a_message_that_may_be_repeated_keeps_its_values(memory, compression):
    parameter = nn.Parameter(torch.zeros(3))
    [bucket] = build_buckets([("a", parameter)], prefix="x", bucket_nbytes=1)
    bucket.lay_out_gradients(counters=1, halves=2)
    parameter.grad = torch.full((3,), 2.0)
    bucket.gradients.fill()
    message = message_of(bucket.gradients, compression, keeps_input=True)
    message.sent.wait("test", DEADLINE_S)
    assert message.output is not None
    message.take(message.output.copy_(message.sent.values).mul_(3))
    bucket.gradients.hand_out()
    assert parameter.grad.tolist() == [6.0] * 3
    assert message.sent.values[:3].tolist() == [2.0] * 3
    assert load().violations() == []
