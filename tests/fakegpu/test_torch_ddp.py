"""Gradients of DDP over groups of bluecomm on the fake's tensors."""

from __future__ import annotations

import pytest
import torch

from tests.support.fakegpu.ddp import RANKS, batches, gradients
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return run_ranks(RANKS, gradients, batches(), tmp_path_factory.mktemp("host"))


def check(expected, transport, folder, seed=0):
    found = run_ranks_on_gpus(
        *(RANKS, gradients, batches(), folder),
        seed=seed,
        environment={"BLUECOMM_DEVICE_TRANSPORT": transport},
    )
    torch.testing.assert_close(found, expected)


def test_gradients_through_nccl_are_those_of_the_host(expected, seed, tmp_path):
    """With buckets, views of them, hooks, and gradients of several passes."""
    check(expected, "nccl", tmp_path, seed)


def test_staged_gradients_are_those_of_the_host(expected, tmp_path):
    check(expected, "staged", tmp_path)
