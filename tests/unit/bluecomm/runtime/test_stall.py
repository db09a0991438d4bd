"""The table of who waits for whom: cycles, excuses, text."""

import pytest

from bfrun.frames.driver_to_rank import StallTable
from bfrun.frames.parts import RankSnapshot
from bluecomm.runtime.stall import StallReport
from tests.support.frames import make_operation


def waits(name, *ranks, age_s=20.0, blocking=True, group=1):
    """Return an outstanding allreduce that waits for ``ranks``."""
    return make_operation(
        name=name, age_s=age_s, waiting_for=list(ranks), blocking=blocking, group=group
    )


def report(rank, name, table, *, age_s=20.0, others=0, wish="", **changes):
    """Return the report of ``rank`` on its operation ``name``.

    ``table`` has the operations of each rank; ``changes`` the fields of single ranks,
    such as ``rank1={"state": "stopped"}``.
    """
    entry = RankSnapshot(
        host="h", pid=7, state="running", cpu_s=0.0, idle_s=99.0, ops=[]
    )
    ranks = {
        str(number): entry.replace(ops=operations, **changes.get(f"rank{number}", {}))
        for number, operations in table.items()
    }
    waiting_for = next(
        (one.waiting_for for one in table[rank] if one.name == name), [1]
    )
    operation = {
        "id": 1,
        "kind": "allreduce",
        "name": name,
        "group": 1,
        "age_s": age_s,
        "waiting_for": waiting_for,
        "wish": wish,
        "received_bytes": 0,
        "expected_bytes": 8,
    }
    return StallReport.from_table(
        rank, operation, StallTable(op=name, ranks=ranks), others
    )


CROSSED = {0: [waits("x", 1)], 1: [waits("y", 0)]}


def test_two_ranks_in_crossed_calls():
    text = report(0, "x", CROSSED).find_cycle()
    assert text == (
        "allreduce 'x' on rank 0: blocking calls in crossed order, which can never "
        "meet: rank 0 is in allreduce 'x' and waits for rank 1; rank 1 is in allreduce "
        "'y' and waits for rank 0. Call the operations in one order on all ranks, or "
        "use their nonblocking forms."
    )


def test_ranks_that_wait_for_a_cycle_of_three_find_it():
    table = {
        0: [waits("a", 1)],
        1: [waits("b", 2)],
        2: [waits("c", 3)],
        3: [waits("d", 1)],
    }
    for rank, name in enumerate("abcd"):
        text = report(rank, name, table).find_cycle()
        assert "rank 3 is in allreduce 'd' and waits for rank 1" in text
        assert "'a' and waits" not in text


@pytest.mark.parametrize(
    "table",
    [
        {0: [waits("x", 1)], 1: [waits("x", 0)]},
        {0: [waits("x", 1)], 1: []},
        {0: [waits("x", 1)], 1: [waits("y", 0, blocking=False)]},
        {0: [waits("x", 1)], 1: [waits("y", 0, age_s=1.0)]},
        {0: [waits("x", 1)], 1: [waits("x", 0, blocking=False), waits("y", 0)]},
        {0: [waits("x", 1)], 1: [waits("y", 2)], 2: []},
        {0: [waits("x", 1, blocking=False)], 1: [waits("y", 0)]},
    ],
    ids=[
        "same call",
        "in none",
        "computes",
        "just came",
        "takes part in both",
        "waits for one that is free",
        "goes on itself",
    ],
)
def test_a_wait_that_may_still_end_is_not_a_cycle(table):
    assert report(0, "x", table).find_cycle() is None


def test_calls_of_two_hosts_cross_only_after_the_link_timeout():
    """Rank 1 may have ended 'x', and a cut network holds back its data."""
    elsewhere = {"rank1": {"host": "elsewhere"}}
    assert report(0, "x", CROSSED, **elsewhere).find_cycle(30.0) is None
    old = {0: [waits("x", 1, age_s=36.0)], 1: [waits("y", 0, age_s=36.0)]}
    assert report(0, "x", CROSSED).find_cycle(30.0) is not None
    text = report(0, "x", old, age_s=36.0, **elsewhere).find_cycle(30.0)
    assert "crossed order" in text
    late = {0: [waits("x", 1, age_s=36.0)], 1: [waits("y", 0, age_s=34.0)]}
    assert report(0, "x", late, age_s=36.0, **elsewhere).find_cycle(30.0) is None


def test_calls_of_one_name_in_two_groups_never_meet():
    table = {0: [waits("x", 1)], 1: [waits("x", 2, 0, group=2)], 2: []}
    for_all = report(0, "x", table)
    assert for_all.find_cycle() == (
        "allreduce 'x' on rank 0: calls of one name by different sets of ranks, which "
        "can never meet: rank 0 is in allreduce 'x' and waits for rank 1; rank 1 is in "
        "allreduce 'x' and waits for rank 0. Pass the same process_set and "
        "is_hierarchical_local on all ranks, or give the calls different names."
    )
    assert for_all.find_cycle(groups_last=False) is None
    same = {0: [waits("x", 1)], 1: [waits("x", 0)]}
    assert report(0, "x", same).find_cycle() is None


def test_states_of_an_earlier_call_are_ignored():
    assert report(0, "after", CROSSED).find_cycle() is None
    assert report(0, "x", CROSSED, age_s=0.1).find_cycle() is None


@pytest.mark.parametrize(
    ("table", "changes", "excused"),
    [
        ({0: [waits("x", 1)], 1: []}, {}, False),
        ({0: [waits("x", 1)], 1: []}, {"rank1": {"idle_s": 3.0}}, True),
        (
            {0: [waits("x", 1)], 1: []},
            {"rank1": {"idle_s": 3.0, "state": "stopped"}},
            False,
        ),
        ({0: [waits("x", 1, 2)], 1: [], 2: []}, {"rank1": {"idle_s": 3.0}}, False),
        (
            {0: [waits("x", 1)], 1: [waits("x", 2)], 2: []},
            {"rank2": {"idle_s": 0.0}},
            True,
        ),
        ({0: [waits("x", 1)], 1: [waits("y", 0)]}, {}, False),
        ({0: [waits("x", 5)], 1: []}, {}, False),
    ],
    ids=["idle", "busy", "stopped", "one of two", "for a busy one", "circle", "absent"],
)
def test_a_busy_rank_excuses_the_ranks_that_wait_for_it(table, changes, excused):
    assert report(0, "x", table, **changes).excuses_all(30.0) is excused


def test_an_operation_that_waits_for_its_gpu_is_not_excused():
    table = {0: [waits("x").replace(wish="its GPU")]}
    waiting = report(0, "x", table, wish="its GPU", rank0={"idle_s": 0.0})
    assert not waiting.excuses_all(30.0)
    head, line = str(waiting).splitlines()
    assert head.startswith("allreduce 'x' on rank 0 has waited 20 s for its GPU (")
    assert "allreduce 'x' for 20 s (waits for its GPU)" in line
    its_turn = report(0, "x", {0: [waits("x")]})
    assert its_turn.excuses_all(30.0)
    assert str(its_turn).startswith("allreduce 'x' on rank 0 has waited 20 s for its t")


def test_the_text():
    table = {0: [waits("x", 1)], 1: []}
    text = str(report(0, "x", table, others=3, rank1={"idle_s": 4.0, "host": "b"}))
    assert text.splitlines() == [
        "allreduce 'x' on rank 0 has waited 20 s for rank 1 (received 0 of 8 bytes); "
        "so have 3 more operations",
        "  rank 0 on h (pid 7, running, CPU last used 99 s ago): allreduce 'x' for "
        "20 s (waits for rank 1)",
        "  rank 1 on b (pid 7, running, CPU last used 4 s ago): in no operation",
    ]


def test_a_window_call_says_what_others_must_do():
    wish = "to release the mutex of rank 0"
    table = {2: [waits("w", 1).replace(kind="win_mutex", wish=wish)], 1: []}
    text = str(report(2, "w", table, wish=wish))
    assert text.startswith(f"allreduce 'w' on rank 2 has waited 20 s for rank 1 {wish}")
    assert f"win_mutex 'w' for 20 s (waits for rank 1 {wish})" in text


def test_a_rank_with_many_outstanding_operations_gets_one_short_line():
    puts = [waits("w", 1, age_s=20.0 + i) for i in range(300)]
    table = {0: [waits("x", 1)], 1: [*puts, *(waits(f"n{i}", 0) for i in range(200))]}
    *_, line = str(report(0, "x", table)).splitlines()
    assert "300 times allreduce 'w' for 319 s (waits for rank 1)" in line
    assert "allreduce 'n2' for 20 s (waits for rank 0), and 197 more" in line
    assert len(line) < 500


def test_a_queued_operation_waits_for_its_turn():
    assert "'q' for 20 s (waits for its turn)" in str(report(0, "q", {0: [waits("q")]}))
