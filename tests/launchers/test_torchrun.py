"""torchrun starts the ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.launchers.support import (
    PROGRAM,
    check_operations,
    findings,
    run_launcher,
)

pytestmark = pytest.mark.launchers

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def test_operations_and_optimizers(tmp_path):
    command = [*TORCHRUN, "--nproc-per-node", "4", "-m", PROGRAM, "operations"]
    done = run_launcher(command, environ={"TMPDIR": str(tmp_path)})
    found = check_operations(done, 4)
    assert {one["source"].split(",")[0] for one in found} == {"torchrun"}
    assert all(one["transports"] == ["shm"] for one in found)
    assert "BLUECOMM_SECRET_FILE" not in done.stderr
    # Neither the secret nor a folder for sockets is left.
    assert not list(tmp_path.glob("bluecomm-*"))


def test_a_killed_rank_is_named_by_its_peers_and_the_restart_meets_anew():
    options = ["--nproc-per-node", "3", "--max-restarts", "1"]
    command = [*TORCHRUN, *options, "-m", PROGRAM, "loss"]
    done = run_launcher(command)
    assert done.returncode == 0, done.stdout + done.stderr
    found = findings(done)
    lost = [one for one in found if "text" in one]
    assert [one["rank"] for one in lost] == [0, 2], done.stderr
    for one in lost:
        assert one["peers"] == [1]
        assert "rank 1" in one["text"]
    again = [one for one in found if "again" in one]
    assert again == [{"rank": rank, "again": 3.0} for rank in range(3)]


def test_rank_zero_runs_the_store_where_torchrun_runs_none():
    body = "import bluecomm as bf; bf.init(); print({'size': bf.size()}, flush=True)"
    options = ["--nproc-per-node", "2", "--no-python"]
    command = [*TORCHRUN, *options, sys.executable, "-c", body]
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = run_launcher(command, environ=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("{'size': 2}") == 2


def test_a_script_of_torch_alone_runs_under_bfrun(tmp_path):
    script = Path(tmp_path, "ddp.py")
    script.write_text(
        "import torch\n"
        "torch.distributed.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "rank = torch.distributed.get_rank()\n"
        "model(torch.full((1, 2), float(rank))).sum().backward()\n"
        "print(model.module.weight.grad.tolist())\n"
        "torch.distributed.destroy_process_group()\n"
    )
    bfrun = [sys.executable, "-m", "bfrun", "-np", "2"]
    done = run_launcher([*bfrun, sys.executable, str(script)])
    assert done.returncode == 0, done.stderr
    expected = [f"[{rank}] [[0.5, 0.5]]" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == expected
