"""The mechanism that runs bodies of ``tests/mp`` over fake GPUs.

``make fakegpu`` runs the files themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.support.fakegpu.library import load
from tests.support.fakegpu.of_the_host import (
    FILES,
    LEFT_OUT,
    NOT_RUN,
    TESTS,
    THROUGH_NCCL,
)
from tests.support.fakegpu.over import over_fakegpu
from tests.support.fakegpu.ranks import this_memory
from tests.support.ranks import RankFailure, run_ranks

pytestmark = pytest.mark.mp
MP = Path(__file__).parents[1] / "mp"


def body(x: torch.Tensor) -> tuple[bool, bool, np.ndarray, dict[str, torch.Tensor]]:
    """Return whether tensors are there, whether NCCL is used, and forms of results."""
    layer = torch.nn.Linear(3, 2)
    made = (x, torch.ones(2), torch.as_tensor(np.ones(2)), layer.weight)
    memory = this_memory()
    on_device = memory is not None and all(memory.holds(one) for one in made)
    total = bf.allreduce(x * (bf.rank() + 1), op=bf.Sum)
    return (
        on_device,
        memory is not None and calls_nccl(),
        total.numpy(),
        {"total": total},
    )


def calls_nccl() -> bool:
    """Return whether this rank has a communicator of NCCL."""
    return load().live()["communicators"] > 0


def test_bodies_get_and_make_tensors_of_the_device():
    x = torch.arange(3.0)
    found = []
    for path in ("nccl", "staged"):
        with over_fakegpu(path, seed=1):
            found += [(path, *one) for one in run_ranks(2, body, x)]
    for path, on_device, uses_nccl, array, tensors in found:
        assert on_device
        assert uses_nccl == (path == "nccl")
        assert array.tolist() == tensors["total"].tolist() == [0.0, 3.0, 6.0]
    assert not run_ranks(2, body, x)[0][0]


def misuse(x: torch.Tensor) -> None:
    this_memory().read(x.as_strided((1000,), (1,)), "too far")


def test_violations_fail_bodies():
    with (
        over_fakegpu("nccl", seed=1),
        pytest.raises(RankFailure, match="too far"),
    ):
        run_ranks(1, misuse, torch.ones(2))


def test_each_file_is_run_or_has_a_reason_why_not():
    listed = sorted([*FILES, *LEFT_OUT])
    assert listed == sorted(file.stem for file in MP.glob("test_*.py"))


def test_each_listed_test_exists():
    for name in {**NOT_RUN, **TESTS, **THROUGH_NCCL}:
        file, function = name.split("::")
        assert file.removesuffix(".py") in FILES
        function = function.partition("[")[0]
        assert re.search(rf"^def {function}\(", (MP / file).read_text(), re.MULTILINE)
