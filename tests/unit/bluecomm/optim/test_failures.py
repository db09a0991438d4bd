"""A series of operations ends before the first error is raised."""

import pytest

from bluecomm.optim.failures import Failures


def test_all_end_and_the_first_error_is_raised():
    failures, ended = Failures(), []
    for number in range(4):
        with failures.kept():
            if number in (1, 2):
                raise ValueError(f"number {number}")
            ended.append(number)
    assert ended == [0, 3]
    with pytest.raises(ValueError, match="number 1"):
        failures.raise_first()


def test_without_errors_nothing_is_raised():
    failures = Failures()
    with failures.kept():
        pass
    failures.raise_first()


def test_the_end_of_the_program_is_no_failure():
    failures = Failures()
    with pytest.raises(KeyboardInterrupt), failures.kept():
        raise KeyboardInterrupt
    failures.raise_first()
