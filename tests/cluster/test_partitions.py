"""``bfrun --partition both``: both sides of a cut train on, and join again later."""

from __future__ import annotations

import json
import math
import re
import sys

import pytest

from tests.support.deadlines import DEADLINE_S, say, wait_until
from tests.support.launch import launched

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

RANKS = 4
LIMIT_S = 4 * DEADLINE_S
# Steps that each side takes while the network is cut.
APART = 30


def progress(folder, rank):
    """Return what a rank has told last."""
    path = folder / f"progress-{rank}"
    return json.loads(path.read_text()) if path.exists() else {"step": 0}


def test_both_sides_of_a_cut_train_on_and_join_again(cluster, tmp_path):
    options = ["--on-failure", "continue", "--respawn", "--partition", "both"]
    options += ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    options += ["--link-timeout", "120", "-x", "OMP_NUM_THREADS=1"]
    command = [sys.executable, "-m", "tests.support.parting", str(tmp_path)]
    with launched(tmp_path, *options, *command) as job:
        told = lambda: [progress(tmp_path, rank) for rank in range(RANKS)]  # noqa: E731
        report = lambda: f"{told()}\n{job.out}\n{job.err}"  # noqa: E731
        wait_until(lambda: min(one["step"] for one in told()) > APART, report)
        cluster.hosts[1].cut_link()
        wait_until(lambda: [len(o["members"]) for o in told()] == [2] * RANKS, report)
        begun = [one["step"] for one in told()]
        wait_until(
            lambda: all(
                o["step"] > b + APART for o, b in zip(told(), begun, strict=True)
            ),
            report,
        )
        sides = [one["lineage"] for one in told()]
        assert sides[:2] == ["primary"] * 2
        assert "primary" != sides[2] == sides[3]
        assert [one["may_save"] for one in told()] == [True, False, False, False]
        say(tmp_path, "healed")
        cluster.hosts[1].restore_link()
        assert job.wait(LIMIT_S) == 0, report()
        assert job.left() == {}
    found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
    found.sort(key=lambda one: one["rank"])
    assert [one["rank"] for one in found] == [*range(RANKS)], report()
    for one in found:
        assert {2, 3} <= {*one["joined"]}, found
        assert one["members"] == [*range(RANKS)], found
        assert one["lineage"] == "primary", found
        assert one["rank"] < 2 or one["split"][-1] == [2, 3], found
    # The primary's steps count.
    assert len({one["step"] for one in found}) == 1, found
    assert [one["may_save"] for one in found] == [True, False, False, False]
    saved = [one["saved"] for one in found]
    assert saved == [["model.pt"], [], [f"model.{sides[2]}.pt"], []], saved
    check_distances(found[0]["before"], found[0]["after"])
    assert f"trained on in the lineage {sides[2]}" in job.err


def check_distances(before, after):
    """Check that the models are as close as before within 10 log2(n) rounds."""
    rounds = round(10 * math.log2(RANKS))
    assert after[0] > 2 * before, (before, after)
    assert max(after[rounds:]) < 1.1 * before, (before, after)
