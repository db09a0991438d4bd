"""Windows whose slots are in memory of the fake's devices, which neighbors map."""

from __future__ import annotations

import ctypes
import logging
import os
import signal

import pytest
import torch

import bluecomm as bf
from bluecomm.window.live import find
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 3
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8)


def shared() -> tuple[int, int]:
    """Return how many allocations of this rank are exported, and mappings it has."""
    exported, mapped = ctypes.c_int(), ctypes.c_int()
    load().cuda.fakegpu_shared(ctypes.byref(exported), ctypes.byref(mapped))
    return exported.value, mapped.value


def is_mapped(name: str) -> bool:
    return find("test", name).device is not None


def use_all_calls(x: torch.Tensor) -> list[torch.Tensor]:
    """Return the values of a window after each call that changes one."""
    found = []
    bf.win_create(x, "x", zero_init=x.dtype is torch.float64)
    found.append(bf.win_update("x", 1.0, others(), clone=True))
    bf.barrier()
    for round_ in range(3):
        bf.win_put(x, "x")
        bf.barrier()  # all values have arrived
        # The front slot is read by a kernel when the next value is taken.
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        bf.barrier()
        bf.win_wait(bf.win_put_nonblocking(x + round_, "x"))
        bf.win_accumulate(x, "x")  # to what is pending
        bf.barrier()
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        bf.barrier()
        bf.win_accumulate(x, "x")  # to what has been taken
        bf.win_accumulate(x, "x", dst_weights=[(bf.rank() + 1) % bf.size()])
        bf.barrier()
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        assert sum(bf.get_win_version("x").values()) == 0
        bf.barrier()
    with bf.win_lock("x"):
        x.add_(1)
    bf.barrier()
    bf.win_get("x", require_mutex=True)
    bf.barrier()  # all have read the own values
    assert bf.win_update("x", 1.0, others()) is x
    found.append(x + 0)
    bf.barrier()
    bf.win_accumulate(x, "x", require_mutex=True)
    bf.barrier()
    bf.win_update_then_collect("x")
    bf.barrier()
    bf.win_put(x, "x", dst_weights=dict.fromkeys(others(), 0.0))
    bf.barrier()
    found.append(bf.win_update("x", 0.0, others(), clone=True))
    return [*found, x]


def others() -> dict[int, float]:
    return {rank: 1.0 for rank in range(bf.size()) if rank != bf.rank()}


def use_weights(x: torch.Tensor) -> list[torch.Tensor]:
    """Return what calls with weights, and a tensor that is not contiguous, give."""
    y = x.t()
    bf.win_create(y, "y")
    bf.turn_on_win_ops_with_associated_p()
    share = 1 / 3
    bf.win_accumulate(y, "y", share, dict.fromkeys(others(), share))
    bf.barrier()
    bf.win_update_then_collect("y")
    found = [y / bf.win_associated_p("y")]
    bf.barrier()
    bf.win_put(y.cpu(), "y", dst_weights=dict.fromkeys(others(), 0.3))
    bf.barrier()
    found.append(bf.win_update("y", clone=True))
    bf.turn_off_win_ops_with_associated_p()
    return [*found, y]


def use_mapped(tensors: list[torch.Tensor], has_device: bool) -> list[object]:
    """Return all values; check where they lie, and that all memory is freed."""
    x = tensors[bf.rank()]
    found = []
    for dtype in TYPES:
        given = (x * 2).abs().to(dtype)
        found.append(use_all_calls(given))
        assert is_mapped("x") is has_device
        if has_device:
            assert shared() == (1, bf.size() - 1)
        bf.win_free("x")
        if has_device:
            assert shared() == (0, 0)
    found.append(use_weights(x * 3))
    assert is_mapped("y") is has_device
    return found  # shutdown frees "y"


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator) for _ in range(RANKS)]


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, use_mapped, inputs(), False)


def test_values_are_those_of_the_host(expected, seed):
    found = run_ranks_on_gpus(RANKS, use_mapped, inputs(), True, seed=seed)
    torch.testing.assert_close(found, expected)


class Messages(logging.Handler):
    """Keeps the warnings of bluecomm."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


REFUSALS = {
    "cuMemAlloc:1=2": "cannot share memory of cuda:1: cuMemAlloc",
    "cuIpcGetMemHandle:1=1": "cannot share memory of cuda:1: cuIpcGetMemHandle",
    "cuIpcOpenMemHandle:1=217": "cannot map memory of the device of rank 0",
    "cuIpcOpenMemHandle:2=205": "cannot map memory of the device of rank 2",
}


def refuse() -> dict[str, list[str]]:
    """Return the warnings of each refusal on rank 1."""
    warnings = {}
    x = torch.full((4,), float(bf.rank()))
    for fault in REFUSALS:
        messages = Messages()
        logging.getLogger("bluecomm").addHandler(messages)
        if bf.rank() == 1:
            set_fake(FAIL=fault)
        bf.win_create(x, "x")
        if bf.rank() == 1:
            set_fake(FAIL="")
        assert not is_mapped("x")
        assert shared() == (0, 0)
        bf.win_put(x, "x")
        bf.barrier()
        total = bf.win_update("x", 1.0, others(), clone=True)
        assert total.tolist() == [3.0] * 4
        bf.win_free("x")
        logging.getLogger("bluecomm").removeHandler(messages)
        warnings[fault] = messages.texts
    # Nothing of a refusal stays.
    bf.win_create(x, "x")
    assert is_mapped("x")
    bf.win_free("x")
    return warnings


def test_a_refusal_on_one_rank_lets_all_use_the_host():
    first, *rest = run_ranks_on_gpus(RANKS, refuse)
    assert all(texts == [] for warnings in rest for texts in warnings.values())
    for fault, text in REFUSALS.items():
        [warning] = first[fault]
        assert f"rank 1 {text}" in warning
        assert "BLUECOMM_DEVICE_TRANSPORT=staged" in warning


def stay_on_host() -> list[str]:
    messages = Messages()
    logging.getLogger("bluecomm").addHandler(messages)
    memory = this_memory()
    tensors = {
        "a tensor of the host": memory.download(torch.ones(2))
        if bf.rank() == 0
        else torch.ones(2),
        "bool": torch.ones(2) > 0,
        "no elements": torch.ones(0),
    }
    for name, tensor in tensors.items():
        bf.win_create(tensor, name)
        assert not is_mapped(name)
    assert shared() == (0, 0)
    bf.win_free()
    logging.getLogger("bluecomm").removeHandler(messages)
    return messages.texts


def stay_staged() -> list[str]:
    messages = Messages()
    logging.getLogger("bluecomm").addHandler(messages)
    bf.win_create(torch.ones(2), "x")
    assert not is_mapped("x")
    logging.getLogger("bluecomm").removeHandler(messages)
    return messages.texts


def test_other_windows_are_on_the_host_without_a_warning():
    assert run_ranks_on_gpus(2, stay_on_host) == [[], []]
    staged = {"BLUECOMM_DEVICE_TRANSPORT": "staged"}
    assert run_ranks_on_gpus(2, stay_staged, environment=staged) == [[], []]
    assert run_ranks_on_gpus(2, stay_staged, machines=[0, 1]) == [[], []]


def lose_a_rank() -> str:
    """Return the error of a put after rank 2 was killed; the others go on."""
    x = torch.full((4,), float(bf.rank() + 1))
    bf.win_create(x, "x", zero_init=True)
    bf.win_put(x, "x")
    bf.barrier()
    if bf.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(bf.PeerLostError) as raised:
        put_for_ever(x)
    other = 1 - bf.rank()
    bf.win_put(x * 2, "x", dst_weights=[other])
    # Rank 2 has left its last value.
    while True:
        total = bf.win_update("x", 1.0, others(), clone=True)
        if total[0].item() == x[0].item() + 2 * (other + 1) + 3:
            break
    raise AssertionError(f"survivor: {raised.value}")


def put_for_ever(x: torch.Tensor) -> None:
    while True:
        bf.win_put(x, "x", dst_weights=[2])


def test_the_values_of_a_lost_rank_stay():
    with pytest.raises(AssertionError) as failure:
        run_ranks_on_gpus(RANKS, lose_a_rank, lost=[2])
    assert str(failure.value).count("survivor: win_put 'x'") == 2


def alternate(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return values of puts, gets and updates whose kernels are late."""
    x = tensors[bf.rank()] * 2
    found = []
    bf.win_create(x, "x", zero_init=True)
    bf.barrier()
    for _ in range(3):
        bf.win_put(x + 1, "x")
        bf.barrier()
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        bf.win_put(x + 2, "x")
        bf.win_accumulate(x, "x")
        bf.barrier()
        found.append(bf.win_update("x", 0.5, dict.fromkeys(others(), 0.25)) * 1)
        bf.barrier()
        bf.win_get("x")
        found.append(bf.win_update("x", 1.0, others(), clone=True))
        bf.barrier()
    bf.win_free("x")
    return found


def test_each_wait_is_needed(tmp_path):
    """Without a wait, values are not those of the host."""
    wanted = run_ranks(RANKS, alternate, inputs())

    def run(environment):
        return run_ranks_on_gpus(RANKS, alternate, inputs(), environment=environment)

    def check(environment):
        torch.testing.assert_close(run(environment), wanted)

    waits = waits_of(run, tmp_path / "sites")
    assert any("cuEventQuery" in one for one in waits)
    assert not unneeded_waits(check, waits)
