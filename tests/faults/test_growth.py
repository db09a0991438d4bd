"""Jobs that grow and shrink with the hosts that a script names."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.fault_matrix import CONSENSUS
from tests.support.growing import growing_command
from tests.support.launch import launched
from tests.support.marked_models import NOT_MIXING
from tests.support.survival import NOT_COUNTING

pytestmark = pytest.mark.faults

# Each newcomer imports torch anew.
LIMIT_S = 4 * DEADLINE_S
ALGORITHMS = (
    *("neighbor_allreduce", "gradient_allreduce", "noloco", "push_diging"),
    *("exact_diffusion", "local", "diloco, streaming"),
)


def run(tmp_path, stages, algorithms, *options, transport="auto"):
    """Run a job through its stages; return what each rank of the end knows."""
    more, command = growing_command(tmp_path, stages, algorithms)
    environ = {"BLUECOMM_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
    with launched(tmp_path, *more, *options, *command, environ=environ) as job:
        assert job.wait(LIMIT_S) == 0, job.out + job.err
        assert job.left() == {}
    found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
    assert len(found) == stages[-1][1], job.out + job.err
    for name in algorithms:
        check_algorithm(name, [one[name] for one in found])
    assert len({one["step"] for one in found}) == 1
    assert all(one["shares"] == len(found) for one in found)
    return sorted(found, key=lambda one: one["rank"]), job


def check_algorithm(name, of_ranks):
    """Check the parameters of all ranks after they have trained together."""
    told = f"{name}: {of_ranks}"
    assert all(one["is_one"] for one in of_ranks), told
    missed = [one["missed"] for one in of_ranks]
    assert max(missed) - min(missed) < 0.1, told
    assert name in NOT_COUNTING or abs(missed[0]) < 0.1, told
    mixed = [one["value"] for one in of_ranks]
    if name not in (*NOT_MIXING, "local"):
        assert max(mixed) - min(mixed) < CONSENSUS, told


def test_a_job_grows_shrinks_and_grows_again(tmp_path):
    stages = [
        ("localhost:1", 1),
        ("localhost:3", 3),
        ("localhost:2", 2),
        ("localhost:9", 4),
    ]
    options = ("-np", "1", "--min-np", "1", "--max-np", "4")
    found, job = run(tmp_path, stages, ALGORITHMS, *options)
    assert [one["rank"] for one in found] == [0, 1, 2, 3]
    for one in found:
        assert (one["size"], one["nodes"], one["again"]) == (4, 4, 4), one
        assert one["members"] == [0, 1, 2, 3]
        assert one["resets"][-1] == [4, 4]
    first = found[0]
    assert [3, 3] in first["resets"]
    assert [3, 2] in first["resets"]
    assert sorted(first["joined"]) == [1, 2, 2, 3]
    assert (first["lost"], first["finished"]) == ([], [2])
    assert "bfrun: rank 2 must leave, because the hosts no longer have" in job.err
    assert re.search(r"rank 2 .* has left; the job goes on with 2 of 3 ranks", job.err)


def test_ranks_move_to_another_host(tmp_path):
    """Both names are this machine, but each has an agent of its own."""
    stages = [
        ("localhost:2 127.0.0.1:1", 3),
        ("127.0.0.1:2", 2),
        ("127.0.0.1:2 localhost:2", 4),
    ]
    found, job = run(tmp_path, stages, ALGORITHMS[:2], "-np", "2", transport="tcp")
    assert [one["rank"] for one in found] == [0, 1, 2, 3]
    for one in found:
        assert (one["size"], one["nodes"], one["again"]) == (4, 4, 4), one
        assert one["machines"] == 2
        assert one["lost"] == []
    assert "bfrun: ranks 0-1 must leave" in job.err
    for rank in (0, 1):
        left = rf"rank {rank} on localhost .* has left; the job goes on with \d of"
        assert re.search(left, job.err), job.err
    # Rank 2 was there all the time.
    assert sorted(found[2]["finished"]) == [0, 1]
    assert {0, 1, 3} <= set(found[2]["joined"])
