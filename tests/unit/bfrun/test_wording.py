"""Tests numbers, names and ranks in texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfrun.wording import count, did_you_mean, format_ranks


@pytest.mark.parametrize(
    ("number", "plural", "text"),
    [
        (0, "", "0 ranks"),
        (1, "", "1 rank"),
        (2, "", "2 ranks"),
        (1, "rankses", "1 rank"),
        (2, "rankses", "2 rankses"),
    ],
)
def test_numbers_and_nouns(number, plural, text):
    assert count(number, "rank", plural) == text


def test_the_nearest_name():
    assert did_you_mean("grene", ["blue", "green"]) == "; did you mean 'green'?"
    assert did_you_mean("xyz", ["blue", "green"]) == ""
    assert did_you_mean("xyz", iter([])) == ""
    assert did_you_mean("xgyz", ["blue", "green"], cutoff=0) != ""


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "3"), ([2, 0, 1, 7], "0-2, 7"), ([1, 3, 4], "1, 3-4")]
)
def test_ranks_are_written_as_people_do(ranks, text):
    assert format_ranks(ranks) == text


@given(st.sets(st.integers(0, 40), min_size=1))
def test_written_ranks_mean_the_same_ranks(ranks):
    found = set()
    for part in format_ranks(list(ranks)).split(", "):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == ranks


def test_the_noun_fits_the_number_of_ranks():
    assert format_ranks([3], noun=True) == "rank 3"
    assert format_ranks([3, 4], noun=True) == "ranks 3-4"
