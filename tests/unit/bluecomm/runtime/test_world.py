"""What a world notes of its operations."""

import collections
import os
import threading
from types import SimpleNamespace

import pytest

from bluecomm.runtime.world import World


class Interrupted:
    """An engine in whose call a signal comes: its handler raises on return."""

    def __init__(self):
        self.released = []

    def submit(self, *arguments):
        kept, keep = arguments[-2:]
        kept[7] = keep
        raise KeyboardInterrupt

    def finished(self):
        return [7]

    def release(self, number):
        self.released.append(number)


@pytest.mark.parametrize("waits", [True, False])
def test_an_operation_whose_start_was_interrupted_is_dropped(waits):
    world = World.__new__(World)
    world.pid = os.getpid()
    world.config = SimpleNamespace(operation_timeout_s=1.0)
    world._engine = Interrupted()
    world._lock = threading.Lock()
    world._closed = world._is_suspended = False
    world._kept = {3: [()]}
    world._dropped = collections.deque()
    world._waiters, world._forgotten, world._hard_limits_s = set(), set(), {}
    with pytest.raises(KeyboardInterrupt):
        world.start(
            *("barrier", "x", 1, "uint8", (0,), (0, 0, 0, 0)),
            keep=(),
            finish=lambda _: None,
            timeout_s=None,
            parameters=None,
            waits=waits,
        )
    world.reap()
    assert world._engine.released == [7]
    assert list(world._kept) == [3]
