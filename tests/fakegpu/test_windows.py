"""Windows of the fake's tensors in memory of the host, compared with those of the host.

``test_mapped_windows`` has windows in memory of the device.
"""

import pytest
import torch

import bluecomm as bf
from bluecomm.window.live import find
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import STAGED
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 3


def use_windows(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the values of a window after each call that changes one."""
    found = []
    x = tensors[bf.rank()] * 2
    bf.win_create(x, "x", zero_init=True)
    for _ in range(3):
        x += 1
        bf.win_put(x, "x", self_weight=0.5)
        bf.barrier()  # all values have arrived
        found.append(bf.win_update("x", clone=True) * 2)
        assert bf.win_update("x") is x
        found.append(x * 2)
        bf.barrier()
    with bf.win_lock("x"):
        x.mul_(3)
    bf.barrier()
    bf.win_wait(bf.win_get_nonblocking("x"))
    bf.barrier()  # all have read the own values
    bf.win_update("x")
    bf.barrier()
    bf.win_accumulate(x * 0.25, "x")
    bf.barrier()
    bf.win_update_then_collect("x")
    bf.win_free("x")
    return [*found, x]


def use_views(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return a window's tensor that is not contiguous, after an update."""
    x = (tensors[bf.rank()] + 1).t()
    bf.win_create(x, "x")
    bf.win_put(x, "x")
    bf.barrier()
    bf.win_update("x")
    bf.win_free("x")
    return x


def use_all(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [*use_windows(tensors), use_views(tensors)]


def use_mapped(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Do what ``use_all`` does, if windows lie in memory of devices where there are."""
    bf.win_create(tensors[bf.rank()], "here")
    is_mapped = find("test", "here").device is not None
    assert is_mapped == (this_memory() is not None)
    bf.win_free("here")
    return use_all(tensors)


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator) for _ in range(RANKS)]


@pytest.fixture(scope="module")
def expected():
    return run_ranks(RANKS, use_all, inputs())


def test_values_are_those_of_the_host(expected, seed):
    found = run_ranks_on_gpus(RANKS, use_all, inputs(), seed=seed, environment=STAGED)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def put_in_time() -> None:
    x = torch.ones(3)
    bf.win_create(x, "x")
    with pytest.raises(ValueError, match="win_put: timeout_s must be above 0, got -1"):
        bf.win_put(x, "x", timeout_s=-1)
    with pytest.raises(TypeError, match="send: timeout_s must be a number, got '1'"):
        bf.send(x, 1 - bf.rank(), timeout_s="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="send: timeout_s must be above 0, got nan"):
        bf.send_nonblocking(x, 1 - bf.rank(), timeout_s=float("nan"))
    bf.win_free()


def test_a_wait_for_the_device_needs_a_valid_deadline():
    run_ranks_on_gpus(2, put_in_time)
