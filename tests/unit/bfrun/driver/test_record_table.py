from hypothesis import given
from hypothesis import strategies as st

from bfrun.driver.record_table import RecordTable
from bfrun.frames.driver_to_rank import RecordsMissing


@given(st.integers(1, 6).flatmap(lambda n: st.permutations(range(n))))
def test_the_last_record_brings_the_table_to_all(order):
    table = RecordTable(len(order), 10)
    for rank in order[:-1]:
        assert table.publish(rank, 0, f"record {rank}", 0.0) == []
    ((ranks, frame),) = table.publish(order[-1], 0, f"record {order[-1]}", 0.0)
    assert ranks == list(range(len(order)))
    assert frame.records == [f"record {rank}" for rank in range(len(order))]
    assert frame.round == 0
    assert table.expire(1e9) == []


def test_rounds_are_apart():
    table = RecordTable(2, 10)
    assert table.publish(0, 0, "a", 0.0) == []
    assert table.publish(1, 1, "b", 0.0) == []
    ((_, frame),) = table.publish(1, 0, "c", 0.0)
    assert frame.records == ["a", "c"]


def test_after_the_limit_the_missing_ranks_are_named_to_the_others():
    table = RecordTable(4, 10)
    table.publish(2, 0, None, 5.0)
    table.publish(0, 0, None, 9.0)
    assert table.expire(14.9) == []
    ((ranks, frame),) = table.expire(15.0)
    assert ranks == [0, 2]
    assert isinstance(frame, RecordsMissing)
    assert frame.ranks == [1, 3]
    assert "ranks 1, 3 did not call bluecomm.init within 10 s" in frame.text
    assert "(ranks 0, 2 did)" in frame.text


def test_a_round_that_needs_an_ended_rank_is_closed_at_once():
    table = RecordTable(2, 10)
    table.publish(0, 0, None, 0.0)
    ((ranks, frame),) = table.rank_ended(1, "rank 1 was killed")
    assert ranks == [0]
    assert "never will: rank 1 was killed" in frame.text
    ((ranks, frame),) = table.publish(0, 1, None, 0.0)
    assert (ranks, frame.round) == ([0], 1)


def test_the_end_of_a_rank_that_had_published_closes_no_round():
    table = RecordTable(2, 10)
    table.publish(1, 0, "x", 0.0)
    assert table.rank_ended(1, "exit 0") == []
    ((_, frame),) = table.publish(0, 0, "y", 0.0)
    assert frame.records == ["y", "x"]


def test_a_rank_that_has_been_started_again_takes_part():
    table = RecordTable(2, 10)
    table.rank_ended(1, "rank 1 was killed")
    table.returned([1], 2)
    assert table.publish(0, 1, "x", 0.0) == []
    ((_, frame),) = table.publish(1, 1, "y", 0.0)
    assert frame.records == ["x", "y"]


def test_ranks_that_were_not_there_at_the_start_take_part():
    table = RecordTable(1, 10)
    table.publish(0, 0, "x", 0.0)
    table.returned([1], 2)
    assert table.publish(0, 1, "x", 0.0) == []
    ((_, frame),) = table.publish(1, 1, "y", 0.0)
    assert frame.records == ["x", "y"]


def test_records_that_fit_into_no_frame_end_the_round():
    table = RecordTable(3, 10)
    assert table.publish(0, 0, "x" * (8 << 20), 0.0) == []
    ((ranks, frame),) = table.publish(1, 0, "x" * (8 << 20), 0.0)
    assert (ranks, frame.ranks) == ([0, 1], [2])
    assert "at most 15728640 are allowed" in frame.text
