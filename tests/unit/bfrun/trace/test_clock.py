"""The offset between two clocks, from questions and answers."""

from hypothesis import given
from hypothesis import strategies as st

from bfrun.trace.clock import WINDOW_NS, ClockEstimate

MS = 1_000_000


def ask(estimate, sent, offset, there, back):
    received = sent + there + offset
    estimate.add(sent, received, received + 5, sent + there + back + 5)


def test_without_an_answer_it_is_the_same_clock():
    estimate = ClockEstimate()
    assert estimate.is_exact
    assert (estimate.to_ours(7), estimate.error_ns) == (7, 0)


@given(
    offset=st.integers(-(10**15), 10**15),
    delays=st.lists(
        st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS)), min_size=1
    ),
)
def test_the_error_is_an_upper_bound_of_the_offset(offset, delays):
    estimate = ClockEstimate()
    sent = 5 * MS
    for there, back in delays:
        ask(estimate, sent, offset, there, back)
        sent += 200 * MS
    assert abs(estimate.offset_ns(sent + offset) - offset) <= estimate.error_ns
    assert not estimate.is_exact


def test_the_quickest_answer_counts():
    estimate = ClockEstimate()
    for delay in (20 * MS, 2 * MS, 30 * MS):
        ask(estimate, 0, 1000 * MS, delay, 0)
    assert estimate.error_ns == MS
    assert estimate.offset_ns(0) == 1001 * MS


def test_a_clock_that_drifts_is_followed():
    estimate = ClockEstimate()
    for window in range(5):
        ask(estimate, window * WINDOW_NS, 100 * window, 0, 0)
    middle = 3 * WINDOW_NS + WINDOW_NS // 2
    assert abs(estimate.offset_ns(middle) - 350) <= 1
    assert estimate.offset_ns(0) == 0
    assert estimate.offset_ns(100 * WINDOW_NS) == 400


def test_an_answer_from_before_the_question_is_no_answer():
    estimate = ClockEstimate()
    estimate.add(100, 0, 1000, 200)
    assert estimate.is_exact
