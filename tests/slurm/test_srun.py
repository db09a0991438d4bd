"""Plain srun: the ranks meet through PMIx or PMI-2, or get an error."""

from __future__ import annotations

import sys

import pytest

from tests.launchers.support import (
    LIGHTNING,
    check_lightning,
    check_operations,
    findings,
    program,
)
from tests.support.ports import held_port
from tests.support.trainers import TRAINER_LIMIT_S

pytestmark = pytest.mark.slurm

# Two daemons of one machine cannot both serve PMIx, whose socket has one name per step.
ONE_NODE = {"pmix": "1", "pmi2": "2"}


@pytest.mark.parametrize(("kind", "name"), [("pmix", "PMIx"), ("pmi2", "PMI-2")])
def test_operations_and_optimizers(slurm, kind, name):
    where = ["-n", "2", "-N", ONE_NODE[kind], f"--mpi={kind}"]
    done = slurm.run("srun", *where, *program("operations"))
    for one in check_operations(done, 2):
        assert one["source"].startswith("srun, step")
        assert one["source"].endswith(name)


def test_the_strategy_of_lightning(slurm):
    pytest.importorskip("lightning")
    done = slurm.run(
        "srun", "-n", "2", "-N", "2", "--mpi=pmi2", *LIGHTNING, limit_s=TRAINER_LIMIT_S
    )
    for one in check_lightning(done, 2):
        assert one["source"].startswith("srun, step")


def test_a_rank_of_another_version_is_named_by_both(slurm):
    done = slurm.run("srun", "-n", "2", "--mpi=pmi2", *program("other_version"))
    assert done.returncode == 0, done.stderr
    said = [one["version"] for one in findings(done)]
    assert "bluecomm of rank 1 differs (expected " in said[0]
    assert "bluecomm of rank 0 differs (expected 0.0.1" in said[1]


@pytest.mark.parametrize("kind", ["pmix", "pmi2"])
def test_a_rank_without_bluecomm_ends_the_wait_of_the_others(slurm, kind):
    body = (
        "import os, sys\n"
        "if os.environ['SLURM_PROCID'] == '1': sys.modules['bluecomm'] = None\n"
        "import bluecomm as bf; bf.init()\n"
    )
    done = slurm.run(
        *("srun", "-n", "2", "-N", "1", f"--mpi={kind}", sys.executable, "-c", body),
        environ={"BLUECOMM_START_TIMEOUT_S": "1"},
    )
    assert done.returncode != 0
    assert "ModuleNotFoundError: import of bluecomm halted" in done.stderr
    assert "init on rank 0: not all ranks called bluecomm.init within 1" in done.stderr


def test_without_either_the_error_names_both_ways_out(slurm):
    body = "import bluecomm as bf; bf.init()"
    done = slurm.run("srun", "-n", "2", sys.executable, "-c", body)
    assert done.returncode != 0
    assert "one of 2 tasks, without a way for them to meet" in done.stderr
    assert "srun --mpi=pmix" in done.stderr
    assert "bfrun" in done.stderr


@pytest.mark.parametrize("kind", ["none", "pmi2"])
def test_process_groups_meet_in_the_store_of_torch(slurm, kind, tmp_path):
    where = ["-n", "2", "-N", "1", f"--mpi={kind}"]
    module = "tests.launchers.both_apis"
    with held_port() as port:
        done = slurm.run(
            *("srun", *where, sys.executable, "-m", module, str(tmp_path)),
            environ={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        )
    assert done.returncode == 0, done.stderr
    assert [one["rank"] for one in findings(done)] == [0, 1]


def test_one_task_is_a_world_of_one(slurm):
    body = "import bluecomm as bf; bf.init(); print('size', bf.size())"
    done = slurm.run("srun", "-n", "1", sys.executable, "-c", body)
    assert done.returncode == 0, done.stderr
    assert "size 1" in done.stdout
