"""Tensors on the GPU of another rank are refused wherever a rank passes tensors."""

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.device import runtime
from tests.support.errors import error_of
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.ranks import FakeRuntime, place
from tests.support.fakegpu.tensors import DeviceMemory
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def pass_tensors_of_another_gpu():
    other = 1 - bf.rank()
    memory = DeviceMemory(other)
    with runtime.use(FakeRuntime(memory)), kernels(memory, makes_tensors=True):
        x = torch.ones(2)
        model = place(nn.Linear(1, 1))
        calls = {
            "allreduce": lambda: bf.allreduce(x),
            "broadcast": lambda: bf.broadcast_(x, 0),
            "allgather": lambda: bf.allgather(x),
            "neighbor_allreduce": lambda: bf.neighbor_allreduce(x),
            "pair_gossip": lambda: bf.pair_gossip(x, other),
            "send": lambda: bf.send(x, other),
            "recv": lambda: bf.recv(x, other),
            "win_create": lambda: bf.win_create(x, "window"),
            "compressed_allreduce": lambda: bf.compressed_allreduce(
                x, bf.Compression.fp16
            ),
            "DistributedOptimizer": lambda: bf.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), 0.1), model
            ),
        }
        if bf.rank() == 0:
            calls["scatter"] = lambda: bf.scatter([x, x], 0)
        errors = {kind: error_of(call) for kind, call in calls.items()}
        if bf.rank() == 1:
            assert "GPU 1" in error_of(lambda: bf.scatter(None, 0))[1]
    return errors


@pytest.mark.parametrize("transport", ["nccl", "staged"])
def test_a_tensor_of_another_ranks_gpu_is_refused(transport):
    results = run_ranks(
        2,
        pass_tensors_of_another_gpu,
        environment={"BLUECOMM_DEVICE_TRANSPORT": transport},
    )
    for rank, errors in enumerate(results):
        for kind, (error, text) in errors.items():
            assert error == "ValueError", (kind, error, text)
            assert text.startswith(f"{kind} on rank {rank}: "), text
            assert f"on GPU {1 - rank}" in text
            assert f"this rank's is GPU {rank}" in text
            assert "torch.cuda.set_device(bluecomm.local_device())" in text
