"""Windows whose neighbors put through NCCL, on devices that do not exist."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from pathlib import Path
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_communicator
from bluecomm.window import nccl_slots
from bluecomm.window.live import find
from bluecomm.window.nccl_slots import NcclSlots
from tests.support.deadlines import DEADLINE_S, hear, say
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import NCCL_PUTS
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.fakegpu.window_calls import (
    RANKS,
    end_rounds,
    inputs,
    others,
    use_rounds,
    use_weights,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
TYPES = (torch.float32, torch.bfloat16, torch.int64)


def goes_through_nccl(name: str) -> bool:
    device = find("test", name).device
    return device is not None and isinstance(device.slots, NcclSlots)


def use_all_calls(x: torch.Tensor) -> list[torch.Tensor]:
    """Return the values of a window after each call that changes one."""
    found = use_rounds(x, zero_init=x.dtype is torch.int64)
    found += end_rounds(x)
    bf.barrier()
    bf.win_put(x, "x")  # nobody takes it
    return found


def use_windows(tensors: list[torch.Tensor], has_device: bool) -> list[object]:
    x = tensors[bf.rank()]
    found = []
    for dtype in TYPES:
        found.append(use_all_calls((x * 2).abs().to(dtype)))
        assert goes_through_nccl("x") is has_device
        bf.win_free("x")
    found.append(use_weights(x * 3))
    assert goes_through_nccl("y") is has_device
    return found  # shutdown frees "y"


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, use_windows, inputs(), False)


def test_values_are_those_of_the_host(expected, seed):
    found = run_ranks_on_gpus(
        RANKS, use_windows, inputs(), True, seed=seed, environment=NCCL_PUTS
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("machines", [[0, 1, 2], [0, 0, 1]])
def test_values_are_those_of_the_host_between_machines(expected, machines):
    found = run_ranks_on_gpus(
        RANKS, use_windows, inputs(), True, environment=NCCL_PUTS, machines=machines
    )
    torch.testing.assert_close(found, expected)


def put_on_a_ring(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the updates of ranks with one in-neighbor, whose puts nobody awaits."""
    bf.set_topology(bf.RingGraph(bf.size(), connect_style=2))
    x = tensors[bf.rank()] * 1
    bf.win_create(x, "x", zero_init=True)
    found = []
    for _ in range(3):
        for factor in (1, 2, 3):
            bf.win_put(x * factor, "x")
        bf.barrier()
        found.append(bf.win_update("x", clone=True))
        bf.barrier()
    bf.win_free("x")
    return found


def test_the_last_of_several_puts_wins():
    wanted = run_ranks(RANKS, put_on_a_ring, inputs())
    for machines in ([0, 0, 0], [0, 1, 2]):
        found = run_ranks_on_gpus(
            RANKS, put_on_a_ring, inputs(), environment=NCCL_PUTS, machines=machines
        )
        torch.testing.assert_close(found, wanted)


def put_between(folder: Path) -> None:
    """Let rank 1 put while rank 0 is about to take the value before."""
    x = torch.full((4,), bf.rank() + 1.0)
    bf.win_create(x, "x", zero_init=True)
    bf.win_put(x, "x")
    bf.barrier()
    may_take = NcclSlots.may_take

    def may_take_then_hear(self, *arguments):
        found = may_take(self, *arguments)
        say(folder, "looked")
        hear(folder, "put")
        return found

    if bf.rank() == 0:
        with mock.patch.object(NcclSlots, "may_take", may_take_then_hear):
            total = bf.win_update("x", 1.0, others(), clone=True)
        assert total.tolist() == [1.0 + 4.0] * 4
    else:
        hear(folder, "looked")
        bf.win_put(x * 2, "x")
        say(folder, "put")
    bf.barrier()
    bf.win_free("x")


def test_a_value_that_was_put_meanwhile_is_awaited(tmp_path):
    run_ranks_on_gpus(2, put_between, tmp_path, environment=NCCL_PUTS)


def get() -> None:
    bf.win_create(torch.ones(2), "x")
    expected = (
        r"win_get 'x': NCCL has no one-sided gets; use win_put, or unset "
        "BLUECOMM_WINDOWS"
    )
    with pytest.raises(ValueError, match=expected):
        bf.win_get("x")
    bf.win_free("x")
    # These are memory of the host.
    bf.win_create(torch.ones(2) > 0, "bool")
    bf.win_create(this_memory().download(torch.ones(2)), "host")
    assert not goes_through_nccl("bool")
    assert not goes_through_nccl("host")
    bf.win_get("host")
    bf.win_free()


def test_gets_are_refused():
    run_ranks_on_gpus(2, get, environment=NCCL_PUTS)


def create(*patterns: str) -> None:
    """Create a window on all ranks, which fails."""
    for pattern in patterns:
        with pytest.raises(bf.BluecommError, match=pattern):
            bf.win_create(torch.ones(2), "x")
    assert bf.get_current_created_window_names() == []


REFUSALS = {
    "rank 0 cannot put through NCCL: NCCL 2.28.9 has no one-sided puts": {
        "FAKEGPU_NCCL_VERSION": "22809"
    },
    "rank . cannot connect NCCL: .*ncclCommWindowRegister returned no window": {
        "FAKEGPU_NCCL_WINDOWS": "0"
    },
    "rank 0 cannot put through NCCL: tensors of this job are staged": {
        "BLUECOMM_DEVICE_TRANSPORT": "staged"
    },
    "rank 0 cannot put through NCCL: ncclMemAlloc": {
        "FAKEGPU_FAIL": "ncclMemAlloc:1=1"
    },
}


@pytest.mark.parametrize("text", REFUSALS)
def test_a_job_that_cannot_put_is_told_why(text):
    pattern = f"win_create 'x' on rank .: BLUECOMM_WINDOWS=nccl is set, but {text}"
    run_ranks_on_gpus(2, create, pattern, environment={**NCCL_PUTS, **REFUSALS[text]})


def fail_to_connect() -> None:
    """Create a window while torch fails on rank 1, and once more."""
    failing = mock.patch.object(NcclSlots, "_await_point", side_effect=RuntimeError)
    with failing if bf.rank() == 1 else contextlib.nullcontext():
        create("cannot connect NCCL")
    bf.win_create(torch.ones(2), "x")
    assert goes_through_nccl("x")
    bf.win_free("x")


def test_an_error_of_torch_on_one_rank_is_told_to_all():
    run_ranks_on_gpus(2, fail_to_connect, environment=NCCL_PUTS)


def disagree() -> None:
    world = current_communicator().world
    setting = "nccl" if bf.rank() == 0 else "auto"
    world.config = dataclasses.replace(world.config, windows=setting)
    with pytest.raises(bf.MismatchError, match="gave another BLUECOMM_WINDOWS"):
        bf.win_create(torch.ones(2), "x")


def test_unlike_settings_are_a_mismatch():
    run_ranks_on_gpus(2, disagree, environment=NCCL_PUTS)


def fail_to_put() -> str:
    """Return the error of a put that NCCL fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl_slots, "_LOSS_S", 0.1)
        return fail_one_put()


def fail_one_put() -> str:
    x = torch.full((4,), float(bf.rank() + 1))
    bf.win_create(x, "x", zero_init=True)
    bf.win_put(x, "x")
    bf.barrier()
    text = ""
    if bf.rank() == 0:
        set_fake(FAIL="ncclPutSignal:1=3")
        with pytest.raises(
            bf.BluecommError, match="win_put 'x' on rank 0: ncclPut"
        ) as e:
            bf.win_put(x * 2, "x")
        text = str(e.value)
        set_fake(FAIL="")
        with pytest.raises(
            bf.BluecommError, match="win_accumulate 'x' on rank 0: nccl"
        ):
            bf.win_accumulate(x * 2, "x")
    bf.barrier()
    total = bf.win_update("x", 1.0, others(), clone=True)
    assert total.tolist() in ([3.0] * 4, x.tolist())  # rank 1 may have lost what came
    bf.barrier()
    bf.win_free("x")
    bf.win_create(x, "x")
    bf.win_put(x, "x")
    bf.barrier()
    assert bf.win_update("x", 1.0, others(), clone=True).tolist() == [3.0] * 4
    bf.barrier()
    return text


def test_a_failure_of_nccl_is_an_error_until_the_window_is_made_again():
    first, _ = run_ranks_on_gpus(2, fail_to_put, environment=NCCL_PUTS)
    assert "ncclPutSignal: internal error" in first
    assert "Puts of this window fail until win_free and win_create" in first


def lose_a_rank(machines: list[int], folder: Path) -> None:
    """Fail with the error of a put after rank 2 was killed."""
    x = torch.full((4,), float(bf.rank() + 1))
    bf.win_create(x, "x", zero_init=True)
    bf.win_put(x, "x")
    bf.barrier()
    bf.win_update("x", 1.0, others(), clone=True)
    for rank in others():
        shares = find("test", "x").native.shares_mailbox(rank)
        assert shares is (machines[rank] == machines[bf.rank()])
    bf.barrier()
    if bf.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with (
        # NCCL may notice the loss long before the engine does.
        mock.patch.object(nccl_slots, "_LOSS_S", DEADLINE_S),
        pytest.raises(bf.PeerLostError) as raised,
    ):
        put_for_ever(x)
    if os.environ["FAKEGPU_REMOTE_ERRORS"] == "1":
        with pytest.raises(bf.PeerLostError, match="rank 2"):
            bf.win_put(x, "x", dst_weights=[1 - bf.rank()])
        # A rank that has left is lost, too, and the other one might name it.
        say(folder, f"past-{bf.rank()}")
        hear(folder, f"past-{1 - bf.rank()}")
    # The values that were taken stay.
    total = bf.win_update("x", 1.0, others(), clone=True)
    assert total[0].item() == 6
    # A failure, since the rank that died fails the run anyway.
    raise AssertionError(f"survivor: {raised.value}")


def put_for_ever(x: torch.Tensor) -> None:
    while True:
        bf.win_put(x, "x")


@pytest.mark.parametrize(
    ("notices", "machines"), [("1", [0, 0, 0]), ("0", [0, 0, 0]), ("1", [0, 1, 2])]
)
def test_a_lost_rank_ends_puts(notices, machines, tmp_path):
    """Let NCCL and the engine notice the loss, or only the engine."""
    environment = {**NCCL_PUTS, "FAKEGPU_REMOTE_ERRORS": notices}
    with pytest.raises(AssertionError) as failure:
        run_ranks_on_gpus(
            RANKS,
            lose_a_rank,
            machines,
            tmp_path,
            lost=[2],
            environment=environment,
            machines=machines,
            report_s=DEADLINE_S,
        )
    assert str(failure.value).count("survivor: win_put 'x'") == 2


def alternate(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return values of puts and updates whose kernels are late."""
    x = tensors[bf.rank()] * 2
    found = []
    bf.win_create(x, "x", zero_init=True)
    bf.barrier()
    for _ in range(3):
        bf.win_put(x + 1, "x")
        bf.barrier()
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        bf.barrier()
        bf.win_put(x + 2, "x")
        bf.win_accumulate(x, "x")
        bf.barrier()
        found.append(bf.win_update("x", 0.5, dict.fromkeys(others(), 0.25)) * 1)
        bf.barrier()
    bf.win_free("x")
    return found


def test_each_wait_is_needed(tmp_path):
    wanted = run_ranks(2, alternate, inputs())

    def run(environment):
        return run_ranks_on_gpus(
            2, alternate, inputs(), environment={**NCCL_PUTS, **environment}
        )

    def check(environment):
        torch.testing.assert_close(run(environment), wanted)

    waits = waits_of(run, tmp_path / "sites")
    assert any("ncclWaitSignal" in one for one in waits)
    assert not unneeded_waits(check, waits)
