"""The checks of ``make test-gpu`` over the fake: that they find what they look for.

Sizes are small, and times have no verdict.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.gpu.job import Job
from tests.gpu.parts import PARTS
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.launch import ROOT

pytestmark = pytest.mark.mp
CHECKS = [
    pytest.param(check, id=f"{part}: {name}")
    for part, checks in PARTS.items()
    for name, check in checks.items()
    # The variables are torch's, which has no GPU here.
    if not check.needs_gpu and not check.environment
]


@pytest.mark.parametrize("check", CHECKS)
def test_checks_pass_over_the_fake(check, tmp_path):
    assert check.run(Job(run_ranks_on_gpus, is_real=False, folder=tmp_path))


def test_without_a_gpu_no_check_passes(tmp_path):
    """Each is listed with the reason, and the exit code says so."""
    output = tmp_path / "found" / "lines"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "core", "--output", str(output)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2, done.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["check"] for line in lines] == [*PARTS["core"]]
    assert all(line["verdict"] == "NOT RUN" for line in lines)
    assert all("sees no GPU" in line["detail"] for line in lines)
    assert f"0 PASS, 0 FAIL, {len(lines)} NOT RUN" in done.stdout
