"""``python -m bluecomm.bench torch``: short runs, with both launchers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bluecomm.bench.process_groups.calls import COLLECTIVES, FORMS
from bluecomm.bench.process_groups.report import TorchReport
from tests.support.deadlines import JOB_S
from tests.support.launch import run_bfrun

pytestmark = pytest.mark.mp

BENCH = ("-m", "bluecomm.bench", "torch", "--rounds", "1", "--round-s", "0.0001")


def test_measures_both_backends_in_each_form(tmp_path: Path) -> None:
    file, plot = tmp_path / "result.json", tmp_path / "result.png"
    job = run_bfrun(
        tmp_path,
        *("-np", "2", sys.executable, *BENCH, "--sizes", "4", "4K"),
        *("--ddp", "lenet", "--fsdp", "lenet", "--step-ms", "3", "--steps", "2"),
        *("--json", str(file), "--plot", str(plot)),
    )
    assert job.process.returncode == 0, job.err
    report = TorchReport.read(file)
    shared = {"bluecomm", "bluecomm, shared"}
    native = {"bf.allreduce_", "bf.allreduce_, shared"}
    expected = {
        (f"{collective}, {form}", nbytes): {"gloo"} | shared
        for collective in COLLECTIVES
        for form in FORMS
        for nbytes in (4 if collective == "all_reduce" else 8, 4096)
    }
    for nbytes in (4, 4096):
        expected["all_reduce, sync", nbytes] |= native
    for nbytes in (8, 4096):
        expected["reduce_scatter, future", nbytes] = shared
    found = {
        (operation, nbytes): set(by_name)
        for (operation, _, nbytes), by_name in report.calls.by_case().items()
    }
    assert found == expected
    assert all(m.min_us > 0 for m in report.calls.measurements)
    assert [[time.contender for time in steps.times] for steps in report.steps] == [
        ["none", "ddp", "ddp:silent", "ddp:bluecomm", "ddp:bluecomm:ordinary"],
        ["none", "fsdp", "fsdp:bluecomm"],
    ]
    for label in ("ddp", "fsdp"):
        assert f"exposed, {label} over gloo / {label}:bluecomm: " in job.out
    assert job.out.count("the same less ddp:silent: ") == 2
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_runs_under_torchrun(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    job = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", *BENCH, "--collectives", "all_reduce"),
            *("--forms", "sync", "--sizes", "4", "--steps", "0", "--json", str(file)),
        ],
        capture_output=True,
        text=True,
        timeout=JOB_S,
    )
    assert job.returncode == 0, job.stderr
    report = TorchReport.read(file)
    assert report.steps == []
    assert {m.library for m in report.calls.measurements} >= {"gloo", "bluecomm"}
