"""Tasks of a Slurm step that do not fit together."""

import threading

import pytest

from bluecomm.config import Config
from bluecomm.errors import BluecommError, MismatchError
from bluecomm.runtime.rendezvous import slurm
from bluecomm.runtime.rendezvous.process_manager import ProcessManager
from tests.support.deadlines import DEADLINE_S


class Memory(ProcessManager):
    """The key-value store that the tasks of a test share."""

    name = "memory"
    remedy = "none"

    def __init__(self, rank, values, barrier):
        super().__init__(rank)
        self._values = values
        self._barrier = barrier

    def put(self, key, value):
        self._values[self._rank, key] = value

    def fence(self, timeout_s):
        self._barrier.wait(timeout_s)

    def get(self, rank, key):
        return self._values[rank, key]

    def close(self):
        pass


@pytest.fixture
def meet(monkeypatch, tmp_path):
    """Let tasks meet, each with its own number of tasks; return the outcomes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def one(rank, size, outcomes):
        environ = {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_STEP_ID": "0",
        }
        try:
            config = Config(start_timeout_s=DEADLINE_S)
            outcomes[rank] = slurm.SlurmRendezvous(config, environ)
        except MismatchError as error:
            outcomes[rank] = str(error)

    def meet(sizes):
        values, barrier, outcomes = {}, threading.Barrier(len(sizes)), {}
        managers = [Memory(rank, values, barrier) for rank in range(len(sizes))]
        monkeypatch.setattr(slurm, "_find_manager", lambda rank, *_: managers[rank])
        threads = [
            threading.Thread(target=one, args=(rank, size, outcomes))
            for rank, size in enumerate(sizes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [outcomes[rank] for rank in range(len(sizes))]

    return meet


def test_tasks_get_their_ranks(meet, tmp_path):
    first, second = meet([2, 2])
    assert (first.assignment.rank, second.assignment.rank) == (0, 1)
    assert first.assignment.secret == second.assignment.secret
    assert (second.assignment.local_rank, second.assignment.local_size) == (1, 2)
    for one in (first, second):
        one.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("sizes", "other"), [([2, 3], 1), ([3, 2], 1), ([3, 3, 4], 2)])
def test_differing_world_sizes_are_named(meet, tmp_path, sizes, other):
    said = meet(sizes)
    wanted = f"the world size of rank {other} differs (expected {sizes[0]}, got"
    assert wanted in said[0]
    wanted = f"the world size of rank 0 differs (expected {sizes[other]}, got"
    assert wanted in said[other]
    assert not list(tmp_path.iterdir())


def test_a_rank_that_is_not_a_number_is_shown():
    environ = {"SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}
    with pytest.raises(BluecommError, match="SLURM_PROCID is 'x', not a number"):
        slurm.SlurmRendezvous(Config(), environ)
