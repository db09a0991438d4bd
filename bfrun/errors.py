"""Errors of the control plane."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """The job, or a part of it, could not be started.

    The text names the host or rank, what was expected, what was got, and the remedy.
    """


class ProtocolError(RuntimeError):
    """Bytes on a control channel that are no valid frame."""


class JobFailed(RuntimeError):
    """A job started by ``bfrun.run`` failed.

    Attributes:
        exit_code: Exit code of the first rank that failed, 128 + signal for a signal.
        report: The final report as printed.
    """

    def __init__(self, exit_code: int, report: str) -> None:
        super().__init__(report or f"the job failed with exit code {exit_code}")
        self.exit_code = exit_code
        self.report = report
