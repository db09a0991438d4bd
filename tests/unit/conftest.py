"""Settings of all unit tests, which run in one process."""

import contextlib
import os
import threading
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.deadlines import wait_until

# No test asserts a duration, so a busy machine must not fail one.
settings.register_profile(
    "unit", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unit")


def _running():
    """Return the threads and the children of this process that a test has to end."""
    children = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has ended
            children |= {*Path("/proc/self/task", task, "children").read_text().split()}
    # Python has a process that tracks resources. Codecs keep their threads, and threads
    # of other languages that have called Python once count for ever.
    children -= {str(resource_tracker._resource_tracker._pid)}
    kept = ("bluecomm-compression", "Dummy-")
    threads = [one for one in threading.enumerate() if not one.name.startswith(kept)]
    return {*children, *threads}


@pytest.fixture(autouse=True)
def _ends_what_it_starts():
    """Fail a test that leaves threads or child processes to the tests after it."""
    before = _running()
    yield

    def left():
        return _running() - before

    wait_until(lambda: not left(), lambda: f"the test leaves {left()}")
