"""``accelerate launch`` starts ranks on CPUs, as docs/torch.md says."""

from __future__ import annotations

import sys

import pytest

from tests.launchers.support import run_launcher
from tests.support.launch import ROOT
from tests.support.trainers import TRAINER_LIMIT_S

pytest.importorskip("accelerate")
pytestmark = pytest.mark.launchers

LAUNCH = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"),
    *("--main_process_port", "0"),  # a free one
]
EXAMPLE = ROOT / "examples" / "accelerate_digits.py"
BRIEF = ["--epochs", "1", "--batch-size", "128"]


@pytest.mark.parametrize(
    ("option", "ranks"), [("--multi_gpu", "2 ranks"), ("--cpu", "1 rank")]
)
def test_the_option_decides_how_many_ranks_start(option, ranks):
    command = [*LAUNCH, option, str(EXAMPLE), *BRIEF]
    done = run_launcher(command, limit_s=TRAINER_LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert f"test accuracy of the average of {ranks}: " in done.stdout
