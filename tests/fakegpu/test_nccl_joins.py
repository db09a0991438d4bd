"""Newcomers of a job whose calls go through NCCL on the fake's tensors."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.launch import launched

pytestmark = pytest.mark.mp
RANKS = 3


def test_newcomers_call_nccl_with_the_others(tmp_path):
    options = ("--on-failure", "continue", "--respawn", "-np", str(RANKS))
    command = (sys.executable, "-m", "tests.support.joining_on_gpus", str(tmp_path))
    environ = {"BLUECOMM_DEVICE_TRANSPORT": "nccl", "OMP_NUM_THREADS": "1"}
    with launched(tmp_path, *options, *command, environ=environ) as job:
        # The newcomer imports torch anew.
        assert job.wait(4 * DEADLINE_S) == 0, job.out + job.err
        found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
    assert sorted(one["rank"] for one in found) == [*range(RANKS)]
    for one in found:
        assert one["sum"] == 6.0
        assert [1, [0, 1, 2]] in one["groups"]
        if one["rank"] != 2:
            assert [0, [0, 1]] in one["groups"]
