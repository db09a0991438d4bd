"""``bfrun --partition both``: both sides of a cut train on, and join again later."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.deadlines import DEADLINE_S, say, wait_until
from tests.support.launch import launched
from tests.support.parting import RANKS
from tests.support.partitions import (
    ROUNDS,
    SIDES,
    consensus,
    is_on_its_side,
    parting_command,
    progress,
    rounds_until_close,
)

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

LIMIT_S = 4 * DEADLINE_S
# Steps that all ranks take together before the cut, and each rank while it lasts.
BEFORE, APART = 30, 15
# Steps after the sides have joined again.
AFTER = 40


def test_both_sides_of_a_cut_train_on_and_join_again(cluster, tmp_path):
    # The cut must end before half of the timeout, also on a machine that is very slow.
    command = parting_command(cluster, tmp_path, 3600, 10, AFTER)
    with launched(tmp_path, *command) as job:
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
    before, after = consensus(found, "before"), consensus(found, "after")
    assert rounds_until_close(before, after, BEFORE) in range(1, ROUNDS + 1), found


def file_of(lineage):
    return "model.pt" if lineage == "primary" else f"model.{lineage}.pt"


def check_sides(told):
    """Check that each side has its own lineages, and that one rank at most saves."""
    of_side = [{told[rank]["lineage"] for rank in side} for side in SIDES]
    assert of_side[0].isdisjoint(of_side[1]), told
    assert sum(one["may_save"] for one in told) <= 1, told
