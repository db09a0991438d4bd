"""Tells the other ranks that an error ends this program, as soon as it is known."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable

from bfrun.frames.frame import Frame
from bfrun.frames.rank_to_driver import Failing, ThreadFailed
from bluecomm.errors import BluecommError
from bluecomm.runtime.exit_watch import ExitWatch, FailedExit
from bluecomm.runtime.rendezvous.agent_connection import AgentConnection


class FailureReport:
    """Reports the errors that an ``ExitWatch`` notices.

    The agent passes them on to all ranks. Without one, the peers are told directly.

    Args:
        agent: Returns the connection to the agent, if there is one.
        tell_peers: Tells the peers that this rank is failing. The text is such as
            ``raised KeyError: 'x'``.
    """

    def __init__(
        self,
        agent: Callable[[], AgentConnection | None],
        tell_peers: Callable[[str], None],
    ) -> None:
        self._agent = agent
        self._tell_peers = tell_peers
        self.watch = ExitWatch(self._on_failure, self._on_thread)

    def _on_failure(self, failed: FailedExit) -> None:
        if failed.status == 128 + signal.SIGTERM:
            # A batch system may be ending all ranks; the agent finds out if it is.
            return
        if self._agent() is None:
            reason = f": {failed.reason}" if failed.reason else ""
            self._tell_peers(failed.deed + reason)
            return
        self._send(
            Failing(
                cause=failed.cause,
                deed=failed.deed,
                reason=failed.reason,
                status=failed.status,
                peers=list(failed.peers),
            )
        )

    def _on_thread(self, thread: str, error: str) -> None:
        self._send(ThreadFailed(thread=thread, error=error))

    def _send(self, frame: Frame) -> None:
        agent = self._agent()
        if agent is not None:
            with contextlib.suppress(BluecommError):  # its reading thread reports it
                agent.send(frame)
