"""Plain srun: the ranks meet through PMIx or PMI-2, or are told what to do."""

from __future__ import annotations

import sys

import pytest

from tests.launchers.support import check_operations, program

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(("kind", "name"), [("pmix", "PMIx"), ("pmi2", "PMI-2")])
def test_operations_and_optimizers(slurm, kind, name):
    done = slurm.run("srun", "-n", "2", f"--mpi={kind}", *program("operations"))
    for one in check_operations(done, 2):
        assert one["source"].startswith("srun, step")
        assert one["source"].endswith(name)


def test_without_either_the_error_names_both_ways_out(slurm):
    body = "import bluecomm as bf; bf.init()"
    done = slurm.run("srun", "-n", "2", sys.executable, "-c", body)
    assert done.returncode != 0
    assert "one of 2 tasks, without a way for them to meet" in done.stderr
    assert "srun --mpi=pmix" in done.stderr
    assert "bfrun" in done.stderr


@pytest.mark.parametrize("kind", ["pmix", "pmi2"])
def test_a_rank_that_does_not_come_ends_the_wait(slurm, kind):
    body = (
        "import os, time, bluecomm as bf\n"
        "if os.environ['SLURM_PROCID'] == '1': time.sleep(4)\n"
        "else: bf.init()\n"
    )
    done = slurm.run(
        *("srun", "-n", "2", f"--mpi={kind}", "--kill-on-bad-exit=1"),
        *(sys.executable, "-c", body),
        environ={"BLUECOMM_START_TIMEOUT_S": "1"},
    )
    assert done.returncode != 0
    assert "not all ranks called bluecomm.init within 1 s" in done.stderr


def test_one_task_is_a_world_of_one(slurm):
    body = "import bluecomm as bf; bf.init(); print('size', bf.size())"
    done = slurm.run("srun", "-n", "1", sys.executable, "-c", body)
    assert done.returncode == 0, done.stderr
    assert "size 1" in done.stdout
