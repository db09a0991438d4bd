"""Faults one after the other on four hosts: ranks are lost, and join again.

This is the short form of ``make churn``. It asserts no time: each fault begins when all
ranks have trained together again.
"""

from __future__ import annotations

import time

import pytest

from tests.churn.job import running
from tests.churn.resources import folders_of_sockets, held, long_lived, shared_memory
from tests.churn.schedule import HOSTS, RANKS, draw
from tests.churn.worker import Work
from tests.support.cluster import make_cluster
from tests.support.deadlines import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

# With it, all victims that are lost differ, and the first one is rank 0.
SEED = 204
# The faults of a group come at once.
GROUPS = (
    ("kill",),
    ("long stop", "leave"),
    ("short stop", "short cut"),
    ("long cut",),
)
# Without faults, the worst rank of two seeds has 96.4 % after so many steps, and an
# untrained one 10 %.
STEPS, ACCURACY = 200, 0.9
MODELS = [("neighbor_allreduce", 1), ("gradient_allreduce", 1)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with make_cluster(tmp_path_factory.mktemp("cluster"), HOSTS) as made:
        yield made


def test_churn(cluster, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    faults = draw(SEED, tuple(kind for group in GROUPS for kind in group))
    with running(tmp_path, cluster, Work(str(logs), MODELS, step_ms=60)) as churn:
        churn.await_all(0)
        warm = {}
        for group in GROUPS:
            for _ in group:
                churn.hit(next(faults), until_excluded=True)
            churn.await_all(time.monotonic_ns())
            # Ranks that have let a newcomer in may hold more than before.
            warm = warm or held(long_lived(churn))
        pids = long_lived(churn)

        def leaks():
            return {
                name: (warm[name].descriptors, now.descriptors)
                for name, now in held(pids).items()
                if name in warm and now.descriptors > warm[name].descriptors
            }

        wait_until(lambda: not leaks(), lambda: f"descriptors have leaked: {leaks()}")
        churn.await_step(STEPS)
        folders = folders_of_sockets(cluster)
        results = churn.end()
        assert churn.job.left() == {}
        assert churn.job.folders_left() == []
    cluster.wait_until_empty()
    assert len(folders) >= HOSTS
    assert not [folder for folder in folders if folder.exists()]
    assert shared_memory(cluster) == []
    assert churn.problems() == []
    assert [one["rank"] for one in results] == [*range(RANKS)]
    assert len({one["step"] for one in results}) == 1
    assert min(min(one["accuracy"]) for one in results) >= ACCURACY
