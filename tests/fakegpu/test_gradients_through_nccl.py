"""Gradients through NCCL on the fake's device, compared with those on the host."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.ops import nccl_steps, start
from bluecomm.ops.nccl_call import make_nccl_call
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.faults import report_killed, set_fake
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus, this_memory
from tests.support.fakegpu.training import (
    RANKS,
    SMALL,
    STEPS,
    distribute,
    make_batches,
    make_model,
    train_scaled,
    train_steps,
    train_unevenly,
)
from tests.support.fakegpu.transports import NCCL
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import RankFailure, run_ranks

pytestmark = pytest.mark.mp

CASES: dict[str, Mapping[str, Any]] = {
    "average": SMALL,
    "sum": {"op": bf.Sum, **SMALL},
    "fp16": {"compression": bf.Compression.fp16, **SMALL},
    "predivide": {"gradient_predivide_factor": 2.0, **SMALL},
    "two passes": {"backward_passes_per_step": 2, **SMALL},
    "every other step": {"num_steps_per_communication": 2, **SMALL},
    "all in one": {},
    "adasum": {"op": bf.Adasum, **SMALL},
}


def train(
    cases: Mapping[str, Mapping[str, Any]], batches: list[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after a training with each case's options."""
    found = {}
    for name, options in cases.items():
        model = place(make_model(has_unused=True))
        bf.broadcast_parameters(model)
        optimizer = distribute(model, options)
        train_steps(
            model, optimizer, batches, options.get("backward_passes_per_step", 1)
        )
        found[name] = [one.detach().clone() for one in model.parameters()]
    return found


def train_all(
    batches: list[torch.Tensor],
) -> tuple[dict[str, list[torch.Tensor]], set[str]]:
    """Return the parameters, and the cases whose gradients go through NCCL."""
    found: dict[str, list[torch.Tensor]] = {}
    through_nccl = set()
    for name, options in CASES.items():
        made = mock.Mock(wraps=make_nccl_call)
        with (
            mock.patch.object(start, "make_nccl_call", made),
            mock.patch.object(nccl_steps, "make_nccl_call", made),
        ):
            found |= train({name: options}, batches)
        if any(one.args[2] == "allreduce" for one in made.call_args_list):
            through_nccl.add(name)
    return found, through_nccl


def check(found: list[Any], expected: list[Any]) -> None:
    """Compare trainings whose gradients may have been added in another order."""
    for mine, others in zip(found, expected, strict=True):
        for name in mine:
            # The least that a half changes, times the rate and the number of steps.
            wide = {"rtol": 1e-3, "atol": 1e-3} if name == "fp16" else {}
            torch.testing.assert_close(mine[name], others[name], **wide)


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, train, CASES, make_batches())


def test_training_is_that_of_the_host_but_for_rounding(expected, seed):
    """No hook and no step waits for the device, which ``train_steps`` asserts."""
    found = run_ranks_on_gpus(
        RANKS, train_all, make_batches(), seed=seed, environment=NCCL
    )
    check([parameters for parameters, _ in found], expected)
    for parameters, through_nccl in found:
        assert through_nccl == CASES.keys()
        # All ranks get the same bits.
        for name, values in parameters.items():
            assert all(map(torch.equal, values, found[0][0][name]))


def train_otherwise(batches: list[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    return {
        # First, because bf.join() joins all optimizers of the process.
        "join": train_unevenly(batches, lambda _: bf.join()),
        "uneven": train_unevenly(batches),
        **train_scaled({"scaled": SMALL}, batches),
    }


def test_scalers_and_ranks_without_data_work_as_on_the_host():
    batches = make_batches()
    expected = run_ranks(RANKS, train_otherwise, batches)
    found = run_ranks_on_gpus(RANKS, train_otherwise, batches, environment=NCCL)
    check(found, expected)


def train_models(batches: list[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Return the parameters after trainings of other models, or of some ranks."""
    rank = bf.rank()
    found = {
        str(dtype): step_twice(make_model().to(dtype), batches[0].to(dtype))
        for dtype in (torch.float64, torch.bfloat16, torch.float16)
    }
    # Rank 1 leaves out a layer, and no rank has the gradient of the third one.
    layers = nn.ModuleList([nn.Linear(16, 4) for _ in range(3)])
    used = layers[:1] if rank == 1 else layers[:2]
    found["left out"] = step_twice(
        layers, batches[0], lambda x: sum(f(x) for f in used)
    )
    some = bf.ProcessSet([0, 2])
    if rank in some.ranks:
        found["set"] = step_twice(make_model(), batches[0], process_set=some)
    return found


def step_twice(
    model: nn.Module,
    x: torch.Tensor,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Return the parameters after two steps, and whether there are gradients."""
    place(model)
    forward = forward or model
    optimizer = distribute(model, {**SMALL, **options})
    for _ in range(2):
        optimizer.zero_grad()
        (forward(x).sum() * (bf.rank() + 1)).backward()
        optimizer.step()
    flags = [torch.tensor(one.grad is None) for one in model.parameters()]
    return [*(one.detach().clone() for one in model.parameters()), *flags]


def test_other_models_and_process_sets_train_as_on_the_host():
    batches = make_batches()
    expected = run_ranks(RANKS, train_models, batches)
    found = run_ranks_on_gpus(RANKS, train_models, batches, environment=NCCL)
    for mine, others in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, others)


def train_apart(numbers: list[Any]) -> dict[str, list[torch.Tensor]]:
    """Train a model of which one layer is on the host, and one on the device."""
    x = torch.tensor(numbers, device="cpu") * (1 + bf.rank())
    torch.manual_seed(0)
    model = nn.ModuleDict({"there": nn.Linear(4, 4), "here": nn.Linear(4, 4)})
    place(model["there"])
    memory = this_memory()
    there = x if memory is None else memory.upload(x)
    optimizer = distribute(model, SMALL)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(
            [model["there"](there).tanh().sum(), model["here"](x).tanh().sum()]
        )
        optimizer.step()
    return {"apart": [one.detach().clone() for one in model.parameters()]}


def test_parameters_may_be_on_the_host_and_on_the_device():
    numbers = make_batches()[0][:, :4].tolist()
    expected = run_ranks(2, train_apart, numbers)
    found = run_ranks_on_gpus(2, train_apart, numbers, environment=NCCL)
    check(found, expected)


# --- Order ---------------------------------------------------------------------------


def exchange_from_two_streams() -> list[list[float]]:
    """Return averages of two gradients, each computed on a stream of its own."""
    memory = this_memory()
    assert memory is not None
    model = nn.ParameterList([nn.Parameter(torch.zeros(3)) for _ in range(2)])
    optimizer = distribute(model, {})
    memory.synchronize()
    streams = [memory.new_stream() for _ in model]

    def on_stream(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def hook(_: torch.Tensor) -> torch.Tensor:
            memory.current_stream = streams[number]
            return torch.full((3,), number + 1.0 + bf.rank())

        return hook

    for number, parameter in enumerate(model):
        parameter.register_hook(on_stream(number))
    (model[0] * model[1]).sum().backward()
    found = [one.grad.tolist() for one in model]
    del optimizer
    return found


def test_each_wait_of_a_stream_is_needed(tmp_path):
    """An exchange without one of its waits races, or gives something else."""

    def check(environment):
        found = run_ranks_on_gpus(
            2, exchange_from_two_streams, environment={**NCCL, **environment}
        )
        assert found == [[[1.5] * 3, [2.5] * 3]] * 2

    # For the streams of the gradients, for the call, and for the result.
    # test_nccl_operations.py has those on the host, which keep memory of dropped calls.
    waits = waits_of(check, tmp_path / "sites")
    of_streams = [one for one in waits if "cuStreamWaitEvent" in one]
    assert len(of_streams) == 3
    assert not unneeded_waits(check, of_streams)


# --- Errors --------------------------------------------------------------------------


class Training:
    """A model and the first step of its training.

    Args:
        is_placed: Whether the model is on the device.
        **options: Options of the optimizer.
    """

    def __init__(self, *, is_placed: bool = True, **options: Any) -> None:
        model = make_model()
        self.model = place(model) if is_placed else model
        self.optimizer = distribute(self.model, {**SMALL, **options})
        x = torch.ones(6, 16)
        self.x = x if is_placed else x.cpu()

    def backward(self) -> str:
        """Run a backward pass; return the type and the text of its error."""
        self.optimizer.zero_grad()
        try:
            self.model(self.x).sum().backward()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"


def refuse_once(options: Mapping[str, Any]) -> list[str]:
    """Return the outcomes of passes, the second of which rank 1 refuses to exchange."""
    training = Training(**options)
    found = [training.backward()]
    refusal = contextlib.nullcontext()
    if bf.rank() == 1:
        refusal = mock.patch.object(
            start, "make_nccl_call", side_effect=ValueError("!")
        )
    with refusal:
        found.append(training.backward())
    found.append(training.backward())
    bf.barrier()  # the shutdown of a rank ends the calls of others
    return found


@pytest.mark.parametrize("options", [{}, {"algorithm": "powersgd", "start_step": 0}])
def test_a_refused_exchange_fails_on_all_ranks_and_later_ones_do_not(options):
    found = run_ranks_on_gpus(RANKS, refuse_once, options, environment=NCCL)
    for rank, (first, second, third) in enumerate(found):
        assert first == third == "no error"
        assert ("ValueError: !" if rank == 1 else "rank 1") in second


def train_one_on_the_host() -> str:
    return Training(is_placed=bf.rank() != 1).backward()


def test_a_model_on_the_host_of_one_rank_is_an_error_on_all():
    for text in run_ranks_on_gpus(RANKS, train_one_on_the_host, environment=NCCL):
        assert text.startswith("MismatchError: allreduce")
        assert "One rank's tensor goes through NCCL" in text


def hang_on_rank_1() -> str:
    """Return the outcome of a pass during which NCCL hangs on the device of rank 1."""
    training = Training()
    assert training.backward() == "no error"
    if bf.rank() == 1:
        set_fake(FAIL="ncclAllReduce:1=hang")
    text = training.backward()
    bf.barrier()  # the shutdown of a rank ends the calls of others
    return text


def test_the_end_of_backward_does_not_wait_for_the_device():
    """Else it would not end before the deadline of an operation."""
    found = run_ranks_on_gpus(RANKS, hang_on_rank_1, environment=NCCL)
    assert found == ["no error"] * RANKS


def fail_on_rank_1() -> None:
    """Train until this rank knows that a call of NCCL has failed on rank 1."""
    training = Training()
    assert training.backward() == "no error"
    if bf.rank() == 1:
        set_fake(FAIL="ncclAllReduce:1=2")
    deadline = time.monotonic() + DEADLINE_S
    while "NCCL's communicator was aborted" not in training.backward():
        assert time.monotonic() < deadline
    with contextlib.suppress(bf.BluecommError):  # which tells of the failure, too
        bf.barrier()


def test_a_failure_of_nccl_ends_the_training_of_all_ranks():
    run_ranks_on_gpus(RANKS, fail_on_rank_1, environment=NCCL)


def lose_rank_1() -> None:
    """Lose a rank between the number of a bucket's call and the call."""
    training = Training()
    assert training.backward() == "no error"
    if bf.rank() == 1:
        set_fake(FAIL="ncclAllReduce:1=kill")
    training.backward()
    report_killed(1)
    # A failure, since the rank that died fails the run anyway.
    raise AssertionError(f"survivor: {training.backward()}")


def test_a_lost_rank_ends_the_training_of_the_others():
    environment = {**NCCL, "FAKEGPU_REMOTE_ERRORS": "0"}
    with pytest.raises(RankFailure) as failure:
        run_ranks_on_gpus(
            RANKS, lose_rank_1, environment=environment, report_s=DEADLINE_S
        )
    assert str(failure.value).count("AssertionError: survivor: PeerLostError") == 2
