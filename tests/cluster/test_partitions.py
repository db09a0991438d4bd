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
SIDES = [{0, 1}, {2, 3}]
LIMIT_S = 4 * DEADLINE_S
# Steps that all ranks take together before the cut, and each rank while it lasts.
BEFORE, APART = 30, 15


def progress(folder, rank):
    """Return what a rank has told last."""
    path = folder / f"progress-{rank}"
    return json.loads(path.read_text()) if path.exists() else None


def test_both_sides_of_a_cut_train_on_and_join_again(cluster, tmp_path):
    options = ["--on-failure", "continue", "--respawn", "--partition", "both"]
    options += ["--ssh-config", str(cluster.ssh_config), "-H", "node1:2,node2:2"]
    # The cut must end before half of it, also on a machine that is very slow.
    options += ["--link-timeout", "3600", "-x", "OMP_NUM_THREADS=1"]
    command = [sys.executable, "-m", "tests.support.parting", str(tmp_path)]
    with launched(tmp_path, *options, *command) as job:
        told = lambda: [progress(tmp_path, rank) for rank in range(RANKS)]  # noqa: E731
        report = lambda: f"{told()}\n{job.out}\n{job.err}"  # noqa: E731
        wait_until(lambda: all(o and o["together"] > BEFORE for o in told()), report)
        cluster.hosts[1].cut_link()
        # On a busy machine a side may fall into parts, which cannot meet again yet.
        wait_until(lambda: all(map(is_on_its_side, range(RANKS), told())), report)
        begun = [one["step"] for one in told()]
        wait_until(
            lambda: all(
                o["step"] > b + APART for o, b in zip(told(), begun, strict=True)
            ),
            report,
        )
        apart = told()
        say(tmp_path, "healed")
        cluster.hosts[1].restore_link()
        assert job.wait(LIMIT_S) == 0, report()
        assert job.left() == {}
    check_sides(apart)
    found = [json.loads(text) for text in re.findall(r"\{.*\}", job.out)]
    found.sort(key=lambda one: one["rank"])
    assert [one["rank"] for one in found] == [*range(RANKS)], report()
    for rank, (one, then) in enumerate(zip(found, apart, strict=True)):
        assert any(side <= {*one["joined"]} for side in SIDES), found
        assert one["lineage"] == "primary", found
        if then["lineage"] != "primary":
            begun = [{*left} for left in one["split"]]
            assert any({*then["members"]} <= left for left in begun), (then, one)
            assert f"trained on in the lineage {then['lineage']}" in job.err
        if then["members"][0] == rank:
            assert file_of(then["lineage"]) in one["saved"], (then, one)
    names = [name for one in found for name in one["saved"] if name != "model.pt"]
    assert len(names) == len({*names}), names
    # The primary's steps count.
    assert len({one["step"] for one in found}) == 1, found
    assert [one["may_save"] for one in found] == [True, False, False, False]
    check_distances(distances(found, "before"), distances(found, "after"))


def is_on_its_side(rank, told):
    return {*told["members"]} <= SIDES[rank // 2]


def file_of(lineage):
    return "model.pt" if lineage == "primary" else f"model.{lineage}.pt"


def check_sides(told):
    """Check that each side has its own lineages, and that one rank at most saves."""
    of_side = [{told[rank]["lineage"] for rank in side} for side in SIDES]
    assert of_side[0].isdisjoint(of_side[1]), told
    assert sum(one["may_save"] for one in told) <= 1, told


def distances(found, phase):
    """Return the largest difference between two models in each step of all ranks."""
    weights = [{int(s): w for s, w in one[phase].items()} for one in found]
    steps = sorted(set.intersection(*({*one} for one in weights)))
    each = [(step, [one[step] for one in weights]) for step in steps]
    return {step: max(values) - min(values) for step, values in each}


def check_distances(before, after):
    """Check that the models are as close as before within 10 log2(n) rounds."""
    rounds = round(10 * math.log2(RANKS))
    close = min(distance for step, distance in before.items() if step >= BEFORE)
    found = [*after.values()]
    assert found[0] > 2 * close, (close, found)
    assert min(found[rounds:]) < 1.1 * close, (close, found)
