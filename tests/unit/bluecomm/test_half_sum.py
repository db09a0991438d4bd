"""Sums of float16 and bfloat16 by a kernel, and by calls of torch."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from bluecomm.ops.weighted_sum import WeightedSum
from tests.support.deadlines import DEADLINE_S
from tests.support.half_sums import half_sum


def test_the_kernel_under_the_simulator_has_the_bits_of_the_formula():
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.unit.bluecomm.half_sum_simulator",
        ],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sums have the bits of the formula" in done.stdout


@pytest.mark.parametrize("weights", [[0.25, 0.25], [0.5, -0.125], [0.75]])
@pytest.mark.parametrize(
    ("dtype", "digits"), [(torch.float16, 11), (torch.bfloat16, 8)]
)
@pytest.mark.parametrize("missing", [(), (0,)])
def test_torch_adds_the_same_but_for_rounding(dtype, digits, weights, missing):
    own, *rows = (
        torch.linspace(k + 1, 3 * k + 2, 15).to(dtype) for k in range(len(weights) + 1)
    )
    staging = SimpleNamespace(
        empty=lambda shape, kind: torch.full(shape, 9, dtype=kind)
    )
    summed = WeightedSum(staging, (3, 5), dtype, 0.5, weights)
    for row, memory in zip(rows, summed.received, strict=True):
        memory.copy_(row.view(3, 5))
    result = torch.zeros(3, 5, dtype=dtype)
    summed.write(own.view(3, 5), result, missing)
    come = [k for k in range(len(weights)) if k not in missing]
    expected = half_sum(
        own,
        0.5 + sum(weights[k] for k in missing),
        [rows[k] for k in come],
        [weights[k] for k in come],
    )
    torch.testing.assert_close(result.view(-1), expected, rtol=2.0**-digits, atol=0)
