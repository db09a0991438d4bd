"""Jobs that grow and shrink with the hosts that a script names, over SSH."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.growing import growing_command
from tests.support.launch import launched

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

# Each newcomer imports torch anew.
LIMIT_S = 4 * DEADLINE_S


def test_a_host_gets_more_ranks_and_another_one_is_removed(cluster, tmp_path):
    stages = [("node1:1 node2:1", 2), ("node1:1 node2:2", 3), ("node2:2", 2)]
    names = ["neighbor_allreduce", "gradient_allreduce"]
    options, command = growing_command(tmp_path, stages, names)
    options += ["--ssh-config", str(cluster.ssh_config), "-np", "2"]
    with launched(tmp_path, *options, "-x", "OMP_NUM_THREADS=1", *command) as job:
        assert job.wait(LIMIT_S) == 0, job.out + job.err
        assert job.left() == {}
    found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
    assert sorted(one["rank"] for one in found) == [1, 2], job.out + job.err
    for one in found:
        assert (one["size"], one["members"], one["shares"]) == (3, [1, 2], 2), one
        assert one["finished"] == [0]
        assert one["lost"] == []
        for name in names:
            assert one[name]["is_one"], one
            assert abs(one[name]["missed"]) < 0.1, one
    assert "bfrun: starting rank 2 on node2" in job.err
    left = r"rank 0 on node1 .* has left; the job goes on with 2 of 3 ranks"
    assert re.search(left, job.err), job.err
