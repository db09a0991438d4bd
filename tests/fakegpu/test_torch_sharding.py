"""Functional collectives, DTensor and FSDP2 over groups on the fake's tensors.

``test_gpu_programs`` runs the same body without NCCL.
"""

from __future__ import annotations

import pytest
import torch

from tests.fakegpu.test_torch_nccl import kinds_through_nccl
from tests.support.fakegpu import sharding
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.fakegpu.transports import NCCL
from tests.support.needs_fsdp2 import needs_fsdp2
from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.mp, needs_fsdp2]


def run_and_name_kinds(values, folder):
    """Return results, and the kinds of the operations that went through NCCL."""
    with kinds_through_nccl() as kinds:
        return sharding.run_all(values, folder), kinds


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    return run_ranks(sharding.RANKS, sharding.run_all, sharding.inputs(), folder)


def test_results_through_nccl_are_those_of_the_host(expected, seed, tmp_path):
    found = run_ranks_on_gpus(
        *(sharding.RANKS, run_and_name_kinds, sharding.inputs(), tmp_path),
        seed=seed,
        environment=NCCL,
    )
    torch.testing.assert_close([results for results, _ in found], expected)
    for _, kinds in found:
        assert kinds >= {"allreduce", "allgather", "alltoall", "reducescatter"}
