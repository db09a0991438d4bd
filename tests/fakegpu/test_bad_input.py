"""Input that no GPU can take: unlike versions of NCCL, and devices in one call."""

from __future__ import annotations

import os
import types
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.device import runtime
from bluecomm.runtime import device_transport
from tests.support.errors import error_of
from tests.support.fakegpu.ranks import (
    FakeRuntime,
    run_on_gpu,
    run_ranks_on_gpus,
    this_memory,
)
from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.fakegpu.transports import NCCL
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 2
PATHS = pytest.mark.parametrize("path", ["nccl", "staged"])


def add_up_with_another_nccl(x: torch.Tensor) -> Any:
    """Return the error of a sum where rank 1 has another version, and a later sum."""
    rank = int(os.environ["BLUECOMM_RANK"])
    library = types.SimpleNamespace(version=f"2.{29 - rank}.7")
    with mock.patch.object(device_transport, "nccl_library", return_value=library):
        bf.init()
    return run_on_gpu(add_up_and_tell, [x])


def add_up_and_tell(x: torch.Tensor) -> tuple[str, str, list[float]]:
    error, text = error_of(lambda: bf.allreduce(x, op=bf.Sum))
    on_host = this_memory().download(x)
    return error, text, bf.allreduce(on_host, op=bf.Sum).tolist()


def test_unlike_versions_of_nccl_are_an_error_on_all_ranks():
    found = run_ranks(
        *(RANKS, add_up_with_another_nccl, torch.ones(2)),
        environment=NCCL,
        initialize=False,
    )
    for rank, (error, text, later) in enumerate(found):
        assert error == "RuntimeError", text
        assert text.startswith(f"rank {rank} cannot call NCCL on CUDA device {rank}: ")
        assert "rank 1 on " in text
        assert "has NCCL 2.28.7, and rank 0 on " in text
        assert "has NCCL 2.29.7; install the same NCCL" in text
        assert text.endswith("or set BLUECOMM_DEVICE_TRANSPORT=staged")
        assert later == [2.0, 2.0]  # the other tensors still travel


def mix_devices(x: torch.Tensor) -> tuple[dict[str, tuple[str, str]], Any]:
    """Return errors of calls whose tensors are on two devices, and right results."""
    on_host = this_memory().download(x)
    calls = {
        "alltoall": lambda: bf.alltoall(x, out=on_host.clone()),
        "allgather": lambda: bf.allgather(x, out=torch.zeros(4, device="cpu")),
        "reducescatter": lambda: bf.reducescatter(on_host, out=x[:1].clone()),
    }
    errors = {kind: error_of(call) for kind, call in calls.items()}
    grouped = bf.grouped_allreduce([x, on_host], op=bf.Sum)
    places = [this_memory().holds(one) for one in grouped]
    return errors, (places, [one.tolist() for one in grouped])


@PATHS
def test_a_result_on_another_device_is_refused_and_a_group_may_mix(path):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path}
    found = run_ranks_on_gpus(
        RANKS, mix_devices, torch.ones(2), environment=environment
    )
    for rank, (errors, (places, sums)) in enumerate(found):
        for kind, (error, text) in errors.items():
            assert error == "ValueError", (kind, text)
            assert text.startswith(f"{kind} on rank {rank}: out must be on "), text
            assert ", as the tensor is, got one on " in text
            assert text.endswith("; move it with .to() first")
        # Each tensor of a group is a call of its own.
        assert places == [True, False]
        assert sums == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FAKEGPU_DEVICES": "2"}, ["cuda:0", "cuda:1"]),
        ({"FAKEGPU_DEVICES": "1", "BLUECOMM_SHARE_GPUS": "1"}, ["cuda:0", "cuda:0"]),
        ({"FAKEGPU_DEVICES": "1", "BLUECOMM_GPUS_PER_RANK": "1"}, ["cuda:0"] * 2),
        ({"FAKEGPU_DEVICES": "1"}, None),
    ],
)
def test_the_device_of_a_rank(environment, expected):
    found = run_ranks(RANKS, local_devices, environment=environment)
    if expected is not None:
        assert found == expected
        return
    for rank, text in enumerate(found):
        assert text.startswith(f"local_device on rank {rank}: its machine has 2 ranks")
        assert "and 1 visible GPUs; start fewer ranks there, or" in text
        assert "bfrun --share-gpus" in text


def local_devices() -> str:
    """Return this rank's device, or the error."""
    with runtime.use(FakeRuntime(DeviceMemory(0))):
        try:
            return str(bf.local_device())
        except RuntimeError as error:
            return str(error)
