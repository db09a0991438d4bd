"""Optimizers whose models are on the fake's device, compared with those on the host."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.ops import start
from bluecomm.ops.nccl_call import make_nccl_call
from bluecomm.optim.algorithms.gradient_allreduce import GradientAllreduce
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.device import call, made
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.optimizer_cases import (
    COMMON,
    OTHERS,
    UNPREDICTABLE,
    check,
    train,
)
from tests.support.fakegpu.ranks import (
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
from tests.support.fakegpu.transports import NCCL
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, train, {**COMMON, **OTHERS}, make_batches())


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
        environment=NCCL,
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


def test_what_is_not_covered_is_refused_by_name():
    run_ranks_on_gpus(2, refuse)
