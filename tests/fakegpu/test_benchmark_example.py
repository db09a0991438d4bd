"""The example that measures images per second, on the fake's devices."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from tests.examples.launch import EXAMPLES
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import NCCL

pytestmark = pytest.mark.mp


def to_fake(to: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``to`` of tensors or modules, which knows the fake's device, too."""

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not args or args[0] != bf.local_device():
            return to(self, *args, **kwargs)
        if isinstance(self, torch.nn.Module):
            return place(self)
        memory = this_memory()
        return self if memory.holds(self) else memory.upload(self)

    return move


def run_example(*arguments: str) -> tuple[list[str], bool]:
    """Run the example; return what it made current, and whether it called NCCL."""
    script = EXAMPLES / "pytorch_benchmark.py"
    tensor, module = torch.Tensor, torch.nn.Module
    with (
        mock.patch.object(sys, "argv", [str(script), *arguments]),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path]),
        mock.patch.object(tensor, "to", to_fake(tensor.to)),
        mock.patch.object(module, "to", to_fake(module.to)),
        mock.patch("torch.cuda.set_device") as set_device,
        mock.patch("torch.cuda.synchronize") as synchronize,
    ):
        synchronize.side_effect = lambda _: this_memory().synchronize()
        runpy.run_path(str(script), run_name="__main__")
        nccl_calls = bf.stats().devices.nccl_calls
    return [str(call.args[0]) for call in set_device.mock_calls], nccl_calls > 0


def test_ranks_train_on_their_gpus_through_nccl(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    small = ["--model", "lenet", "--batch-size", "2", "--num-iters", "1"]
    small += ["--num-warmup-batches", "1", "--num-batches-per-iter", "1"]
    found = run_ranks_on_gpus(
        2,
        run_example,
        *("--dist-optimizer", "gradient_allreduce", *small, "--json", str(target)),
        environment=NCCL,
    )
    assert found == [(["cuda:0"], True), (["cuda:1"], True)]
    result = json.loads(target.read_text())
    assert len(result["images_per_second_per_rank"]) == 2
    assert result["consensus_distance"] == 0
