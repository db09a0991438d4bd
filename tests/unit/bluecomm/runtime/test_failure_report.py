"""Where reports of errors that end the program go."""

from __future__ import annotations

import pytest

from bfrun.frames.rank_to_driver import Failing
from bluecomm.runtime.exit_watch import FailedExit
from bluecomm.runtime.failure_report import FailureReport

FAILED = FailedExit("KeyError", "raised KeyError", "'x'", 1, (2,))


class Agent:
    def __init__(self):
        self.got = []

    def send(self, frame):
        self.got.append(frame)


def reported(failed, agent=None):
    """Return the texts that the peers are told."""
    told = []
    report = FailureReport(lambda: agent, told.append)
    report.watch._on_failure(failed)
    return told


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        (FAILED, ["raised KeyError: 'x'"]),
        (FailedExit("exit 3", "called sys.exit(3)", "", 3), ["called sys.exit(3)"]),
        (FailedExit("exit 143", "called sys.exit(143)", "", 143), []),
    ],
)
def test_without_an_agent_the_peers_are_told(failed, told):
    assert reported(failed) == told


def test_an_agent_tells_the_peers():
    agent = Agent()
    assert reported(FAILED, agent) == []
    assert agent.got == [
        Failing(
            cause="KeyError",
            deed="raised KeyError",
            reason="'x'",
            status=1,
            peers=[2],
        )
    ]
