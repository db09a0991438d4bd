"""Errors of the control plane."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """The job, or a part of it, could not be started.

    The text names the host or rank, the expected and the actual value, and a remedy.
    """


class ProtocolError(RuntimeError):
    """Data on a control connection or in a trace that is not valid."""


class JobFailed(RuntimeError):
    """A job started by ``bfrun.run`` failed.

    Attributes:
        exit_code: Exit code of the first rank that failed, 128 + signal for a signal.
        report: The final report, as bfrun would print it.
    """

    def __init__(self, exit_code: int, report: str) -> None:
        super().__init__(report or f"the job failed with exit code {exit_code}")
        self.exit_code = exit_code
        self.report = report
