"""``python -m bluecomm.bench train``: a short run of each case."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bluecomm.bench.training.contenders import default_names
from bluecomm.bench.training.report import TrainReport
from tests.support.launch import run_bfrun

pytestmark = pytest.mark.mp

WITH_OPTIONS = ("neighbor_allreduce:static:atc", "diloco:every=2", "ddp:bluecomm")
SHORT = ("--rounds", "1", "--steps", "2", "--warmup", "1")


def test_trains_with_each_algorithm(tmp_path: Path) -> None:
    file, picture = tmp_path / "result.json", tmp_path / "result.png"
    command = (sys.executable, "-m", "bluecomm.bench", "train", *SHORT)
    job = run_bfrun(
        tmp_path,
        *("-np", "2", *command, "--layers", "3x4K", "--step-ms", "3"),
        *("--algorithms", *default_names(), *WITH_OPTIONS),
        *("--json", str(file), "--plot", str(picture)),
    )
    assert job.process.returncode == 0, job.err
    report = TrainReport.read(file)
    assert [(time.ranks, time.contender) for time in report.times] == [
        (1, "none"),
        *((2, name) for name in default_names()),
        *((2, label) for label in WITH_OPTIONS),
    ]
    assert "3x4K, 0.0 MB, emulated step 3 ms" in job.out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_real_compute_among_some_ranks(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "bluecomm.bench", "train", *SHORT)
    options = ("--model", "lenet", "--algorithms", "gradient_allreduce")
    job = run_bfrun(tmp_path, "-np", "3", *command, *options, "--scaling", "1,2")
    assert job.process.returncode == 0, job.err
    assert "lenet, 0.2 MB" in job.out


def test_one_rank_may_be_slow(tmp_path: Path) -> None:
    file = tmp_path / "paces.json"
    command = (sys.executable, "-m", "bluecomm.bench", "train", *SHORT)
    names = ["win_put", "pull_get", "push_sum", "neighbor_allreduce"]
    job = run_bfrun(
        tmp_path,
        *("-np", "3", *command, "--layers", "2x4K", "--step-ms", "3"),
        *("--slow-rank", "1:5", "--algorithms", *names, "--json", str(file)),
    )
    assert job.process.returncode == 0, job.err
    assert "2x4K, 3 ranks, step of 3 ms, rank 1 5 times as long" in job.out
    paces = json.loads(file.read_text())["paces"]
    assert [pace["contender"] for pace in paces] == names
    for pace in paces:
        assert min(pace["alike"], pace["others"], pace["slow"]) > 0
        assert pace["kept"] == pace["others"] / pace["alike"]


@pytest.mark.parametrize("options", [("--slow-rank", "0:10"), ("--slow-rank", "0:x")])
def test_a_slow_rank_needs_a_factor_and_a_step(
    options: tuple[str, str], tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "bluecomm.bench", "train", *options)
    job = run_bfrun(tmp_path, "-np", "1", *command)
    assert job.process.returncode == 2
    wanted = "give --step-ms" if options[1] == "0:10" else "must be like 0:10"
    assert wanted in job.err


def test_scaling_is_refused_for_asynchronous_algorithms(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "bluecomm.bench", "train", "--scaling", "1,2")
    job = run_bfrun(tmp_path, "-np", "2", *command, "--algorithms", "ddp", "win_put")
    assert job.process.returncode == 2
    assert "[0] win_put always uses all ranks; instead of --scaling start" in job.err
