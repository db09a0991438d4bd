"""Tests numbers and names in texts."""

import pytest

from bfrun.wording import count, did_you_mean


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
