"""torchrun starts Lightning's strategy; Slurm and several hosts have other tests."""

from __future__ import annotations

import sys

import pytest

from tests.launchers.support import LIGHTNING, check_lightning, run_launcher
from tests.support.trainers import TRAINER_LIMIT_S

pytest.importorskip("lightning")
pytestmark = pytest.mark.launchers


def test_torchrun_decides_the_number_of_ranks():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run_launcher([*torchrun, *LIGHTNING[1:]], limit_s=TRAINER_LIMIT_S)
    for one in check_lightning(done, 2):
        assert one["source"].startswith("torchrun")
