"""A lock whose holder calls functions after it has released the lock."""

import collections
import threading

import pytest

from bluecomm.runtime.epochs.locked import Locked


@pytest.fixture
def parts():
    return threading.Condition(threading.Lock()), collections.deque()


def test_functions_are_called_without_the_lock(parts):
    lock, later = parts
    called = []

    def call(number):
        with Locked(lock, later):
            called.append(number)
            if number == 1:
                later.append(lambda: call(3))

    with Locked(lock, later):
        later.extend([lambda: call(1), lambda: call(2)])
        assert called == []
    assert sorted(called) == [1, 2, 3]
    assert called[0] == 1
    assert not later


def test_the_lock_is_released_after_an_error(parts):
    lock, later = parts
    called = []
    later.append(lambda: called.append(1))
    with pytest.raises(KeyError), Locked(lock, later):
        raise KeyError
    assert called == [1]
    assert lock.acquire(blocking=False)
    lock.release()


def test_another_thread_may_take_a_function(parts):
    class Taken(collections.deque):
        def __bool__(self):
            return True

    with Locked(parts[0], Taken()):
        pass
