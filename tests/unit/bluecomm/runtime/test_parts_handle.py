"""Handles that take a result in parts: what they wait for, and when they begin anew."""

from types import SimpleNamespace

import pytest

from bluecomm import errors
from bluecomm.runtime import failure
from bluecomm.runtime.parts_handle import PartsHandle

NBYTES = 10
PART = 4


class World:
    """Answers waits with what the test has listed."""

    rank = 0

    def __init__(self, *answers):
        self.answers = list(answers)
        self.wanted = []

    def wait_part(self, number, nbytes, timeout_s):
        self.wanted.append(nbytes)
        return self.answers.pop(0)

    def limit_s(self, number):
        return 7.0

    def release(self, number):
        pass


class Parts:
    """Notes the parts that are taken."""

    def __init__(self):
        self.copied = 0
        self.taken = []

    @property
    def wanted(self):
        return min(self.copied + PART, NBYTES)

    def take(self, nbytes):
        self.taken.append(nbytes)
        self.copied = nbytes

    def restart(self):
        self.taken.append("anew")
        self.copied = 0


DONE = SimpleNamespace(code=failure.OK, text="", rank=-1)
FAILED = SimpleNamespace(
    code=failure.INTERNAL, text="it broke", rank=-1, was_carried_out=False
)


def wait(*answers, timeout_s=None):
    world, parts = World(*answers), Parts()
    handle = PartsHandle(world, 5, "broadcast", "x", lambda _: "result", parts)
    try:
        return handle.wait(timeout_s), world.wanted, parts.taken
    except errors.BluecommError as error:
        return str(error), world.wanted, parts.taken
    finally:
        handle._finish = None  # the world has forgotten the request


def test_parts_are_taken_until_the_operation_has_ended():
    answers = [(None, 4), (None, 9), (None, NBYTES), (DONE, NBYTES)]
    assert wait(*answers) == ("result", [4, 8, 10, 10], [4, 9, 10])


def test_an_operation_that_ends_first_leaves_all_to_its_end():
    assert wait((DONE, NBYTES)) == ("result", [4], [])


@pytest.mark.parametrize("is_done", [False, True])
def test_a_result_that_has_changed_is_taken_anew(is_done):
    answers = [(None, 4), *([] if is_done else [(None, 0)]), (DONE, 0)]
    text, _, taken = wait(*answers, timeout_s=None if is_done else 5.0)
    if is_done:
        assert (text, taken) == ("result", [4, "anew"])
    else:
        assert "not finished within 5 s" in text
        assert taken == [4, "anew"]


def test_no_part_of_a_failed_operation_is_taken():
    text, _, taken = wait((None, 4), (FAILED, 0))
    assert "it broke" in text
    assert taken[0] == 4
    assert len([one for one in taken if one != "anew"]) == 1


def test_a_wait_that_times_out_takes_nothing():
    text, wanted, taken = wait((None, 3), timeout_s=2.0)
    assert "not finished within 2 s" in text
    assert (wanted, taken) == ([4], [])
