"""``bluecomm.elastic`` in jobs that survive losses."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.support.elastic_training import KILLED_AT, LENGTH, SIZE
from tests.support.launch import launched

pytestmark = pytest.mark.faults

RANKS, VICTIM, FAILING, LEAVING = 4, 0, 15, 3


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of the ranks that were not killed."""
    options = ["--on-failure", "continue", "-np", str(RANKS)]
    numbers = map(str, (VICTIM, FAILING, LEAVING))
    command = [sys.executable, "-m", "tests.support.elastic_training", *numbers]
    with launched(
        tmp_path_factory.mktemp("elastic"),
        *options,
        *command,
        environ={"OMP_NUM_THREADS": "1"},
    ) as job:
        assert job.wait() == 0, job.out + job.err
        texts = re.findall(r"\{.*\}", job.out)
        assert "told all ranks" not in job.err
        assert job.left() == {}
    ranks = {one["rank"]: one for one in map(json.loads, texts)}
    assert sorted(ranks) == [1, 2, 3]
    return ranks


def test_all_ranks_that_are_left_are_interrupted_at_the_same_batches(found):
    first, error, last = found[1]["resets"]
    assert found[2]["resets"] == [first, error, last]
    assert found[LEAVING]["resets"] == [first, error]
    assert KILLED_AT <= first <= KILLED_AT + 4
    # The others may not have begun their next check when rank LEAVING has gone.
    assert FAILING + 5 <= last <= FAILING + 9


def test_an_error_goes_back_to_the_last_commit(found):
    assert found[1]["resets"][1] == FAILING - 1


def test_a_loss_changes_no_model_and_an_error_makes_all_equal(found):
    at_start, after_loss, after_error = (
        [one["synced"][call] for one in found.values()] for call in range(3)
    )
    assert at_start[0] == at_start[1] == at_start[2]
    assert len({tuple(by_neighbors) for by_neighbors, _ in after_loss}) == 3
    assert len({tuple(by_allreduce) for _, by_allreduce in after_loss}) == 1
    assert after_error[0] == after_error[1] == after_error[2]


def test_no_index_is_taken_twice_and_only_those_in_flight_are_lost(found):
    taken = [index for one in found.values() for index in one["taken"]]
    twice = len(taken) - len(set(taken))
    assert twice < len(found)  # they fill up the last batches
    first = found[1]["resets"][0]
    last = found[1]["resets"][-1]
    missing = LENGTH - len(set(taken))
    # The share of the lost rank, and of the one that left since its notice.
    in_flight = first * SIZE + (last - FAILING - 5) * SIZE
    assert missing == in_flight
