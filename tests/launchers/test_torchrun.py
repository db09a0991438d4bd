"""torchrun starts the ranks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.launchers.elastic_script import KILLED_AT, TERMINATED_AT
from tests.launchers.support import (
    check_operations,
    findings,
    run_launcher,
)
from tests.support.deadlines import JOB_S

pytestmark = pytest.mark.launchers

RANKS = 2
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """One torchrun whose ranks fail in a different way at each start but the last."""
    options = ["--nproc-per-node", str(RANKS), "--max-restarts", "4"]
    program = ["-m", "tests.launchers.without_bluecomm", "starts_of_torchrun"]
    environ = {"TMPDIR": str(tmp_path_factory.mktemp("torchrun"))}
    done = run_launcher([*TORCHRUN, *options, *program], environ=environ, limit_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_operations_and_optimizers(job):
    found = check_operations(job, RANKS)
    assert {one["source"].split(",")[0] for one in found} == {"torchrun"}
    assert all(one["transports"] == ["shm"] for one in found)
    assert "BLUECOMM_SECRET_FILE" not in job.stderr


def test_a_rank_without_bluecomm_ends_the_start(job):
    assert "ModuleNotFoundError: import of bluecomm halted" in job.stderr


def test_a_rank_of_another_version_is_named_by_all(job):
    said = {one["rank"]: one["version"] for one in findings(job) if "version" in one}
    assert "bluecomm of rank 1 differs (expected " in said[0]
    assert ", got 0.0.1)" in said[0]
    assert "bluecomm of rank 0 differs (expected 0.0.1" in said[1]


def test_a_rank_of_another_world_size_is_named_by_all(job):
    told = [one for one in findings(job) if "size_of_world" in one]
    said = {one["rank"]: one["size_of_world"] for one in told}
    assert "world size of rank 1 differs (expected 2, got 3)" in said[0]
    assert "world size of rank 0 differs (expected 3, got 2)" in said[1]


def test_a_killed_rank_is_named_by_its_peer(job):
    lost = [one for one in findings(job) if "lost" in one]
    assert [one["rank"] for one in lost] == [0], job.stderr
    assert lost[0]["lost"] == [1]
    assert "rank 1" in lost[0]["text"]


def test_the_error_of_a_rank_is_told_to_its_peer(job):
    told = [one for one in findings(job) if "raised" in one]
    assert [(one["rank"], one["raised"]) for one in told] == [(0, [1])], job.stderr
    assert re.search(
        r"allreduce 'raised' on rank 0.*: rank 1 on .* \(pid \d+\) raised "
        r"ValueError: a bad batch",
        told[0]["text"],
    ), told


def test_restarted_ranks_meet_anew_and_end_unevenly(job):
    again = [one for one in findings(job) if "again" in one]
    assert [one["rank"] for one in again] == list(range(RANKS))
    assert {one["again"] for one in again} == {float(RANKS)}


def test_all_ranks_tune_alike(job):
    first, *others = [one["tuned"] for one in findings(job) if "tuned" in one]
    assert first["is_over"]
    # The default and two trials.
    assert len(set(first["bucket_bytes"])) == 3
    assert others == [first] * (RANKS - 1)


def test_rank_zero_runs_the_store_where_torchrun_runs_none(tmp_path):
    body = "import bluecomm as bf; bf.init(); print({'size': bf.size()}, flush=True)"
    options = ["--nproc-per-node", "2", "--no-python"]
    command = [*TORCHRUN, *options, sys.executable, "-c", body]
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TMPDIR": str(tmp_path)}
    done = run_launcher(command, environ=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("{'size': 2}") == 2
    # No secret and no folder for sockets is left.
    assert not list(tmp_path.glob("bluecomm-*"))


def test_a_script_of_torch_alone_runs_under_bfrun(tmp_path):
    script = Path(tmp_path, "ddp.py")
    # PyTorch keeps gloo's threads while a model exists. If one still releases its last
    # work when Python exits, it aborts the process (SIGABRT).
    script.write_text(
        "import os\n"
        "import torch\n"
        "torch.distributed.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "rank = torch.distributed.get_rank()\n"
        "model(torch.full((1, 2), float(rank))).sum().backward()\n"
        "print(model.module.weight.grad.tolist(), flush=True)\n"
        "torch.distributed.destroy_process_group()\n"
        "os._exit(0)\n"
    )
    bfrun = [sys.executable, "-m", "bfrun", "-np", "2"]
    done = run_launcher([*bfrun, sys.executable, str(script)])
    assert done.returncode == 0, done.stderr
    expected = [f"[{rank}] [[0.5, 0.5]]" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == expected


def test_a_training_goes_on_from_its_newest_commit_and_stops_in_time(tmp_path):
    options = ["--nproc-per-node", "2", "--max-restarts", "1"]
    module = ["-m", "tests.launchers.elastic_script", str(tmp_path)]
    done = run_launcher([*TORCHRUN, *options, *module], limit_s=2 * JOB_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = findings(done)
    # Rank 0 may have made the commit in which rank 1 was missing, or not.
    (begun,) = {tuple(one["begun"]) for one in found}
    assert begun[0] in (KILLED_AT - 1, KILLED_AT)
    (sums,) = {tuple(one["sums"]) for one in found}
    assert len(sums) == TERMINATED_AT
    assert begun[1] == sum(sums[: begun[0]])
    # They stay for the next job, as this one was told to stop.
    assert [one["files"] for one in found] == [
        [f"commit-{TERMINATED_AT}-rank-0.pt"],
        [],
    ]
