"""Notices when the processes of ranks end, stop or vanish.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import signal
import time

from bfrun.agent.driver_connection import DriverConnection
from bfrun.agent.rank_process import RankProcess
from bfrun.frames.agent_to_driver import RankStopped, RankVanished
from bfrun.frames.parts import ProcessState

_SAMPLE_EVERY_S = 1.0
# A batch system signals all processes of a job. So after a rank was ended by SIGTERM,
# the agent waits a moment for its own SIGTERM before it reports the rank.
_BY_SIGTERM = (-signal.SIGTERM, 128 + signal.SIGTERM)
_SIGTERM_HOLD_S = 0.3


class RankWatch:
    """Watches the ranks of one agent.

    Args:
        ranks: Processes by rank; the owner adds them as it starts them.
        connection: Connection to the driver, which is told of the changes.
    """

    def __init__(
        self, ranks: dict[int, RankProcess], connection: DriverConnection
    ) -> None:
        self._ranks = ranks
        self._connection = connection
        self._sampled = time.monotonic()
        # Ranks that have ended, each with the time at which the driver is told.
        self._exited: list[tuple[float, RankProcess]] = []
        self._poll_at = 0.0
        self._skipped = False

    @property
    def holds(self) -> bool:
        """Whether a rank may have ended that the driver has not been told of."""
        return bool(self._exited) or self._skipped

    def poll(self) -> list[RankProcess]:
        """Return the ranks that have ended since the last call. Call it often.

        It asks the kernel about each rank, which takes a millisecond for a thousand
        ranks. A call too soon after the last one returns nothing, so that polling uses
        at most a tenth of the time.
        """
        now = time.monotonic()
        self._skipped = now < self._poll_at
        if self._skipped:
            return []
        ended = [rank for rank in self._ranks.values() if rank.poll_exit()]
        took_s = time.monotonic() - now
        self._poll_at = now + 10 * took_s
        for rank in ended:
            hold_s = _SIGTERM_HOLD_S if rank.status in _BY_SIGTERM else 0.0
            self._exited.append((now + hold_s, rank))
        return ended

    def due(self, *, at_once: bool) -> list[RankProcess]:
        """Return the ended ranks that the driver must be told of now, each once."""
        now = time.monotonic()
        due = [rank for at, rank in self._exited if at_once or at <= now]
        self._exited = [(at, rank) for at, rank in self._exited if rank not in due]
        return due

    def sample(self, failure_timeout_s: float) -> None:
        """Report ranks that have stopped, continued or vanished. Call it often."""
        now = time.monotonic()
        step_s = now - self._sampled
        if step_s < _SAMPLE_EVERY_S or self._connection.paused:
            return
        self._sampled = now
        step_s = min(step_s, 2 * _SAMPLE_EVERY_S)
        for rank in self._ranks.values():
            if rank.popen is None or rank.status is not None:
                continue
            event = rank.freeze.sample(rank.watched_pid, step_s, failure_timeout_s)
            if event is not None:
                self._connection.send(
                    RankStopped(
                        event=event,
                        rank=rank.rank,
                        pid=rank.watched_pid,
                        seconds=rank.freeze.stopped_s,
                    )
                )
            self._check_vanished(rank)

    def _check_vanished(self, rank: RankProcess) -> None:
        """Report a process that spoke for its rank and ended before its parent."""
        pid = rank.hello_pid
        if pid is None or pid == rank.pid or rank.freeze.state != "exited":
            return
        if not rank.said_goodbye and not rank.vanished:
            rank.vanished = True
            self._connection.send(RankVanished(rank=rank.rank, pid=pid))

    def inspection(self) -> dict[str, ProcessState]:
        """Return what each rank's process is doing, by rank."""
        return {
            str(rank.rank): ProcessState(
                pid=rank.watched_pid,
                state="exited" if rank.status is not None else rank.freeze.state,
                cpu_s=rank.freeze.cpu_s,
                idle_s=rank.freeze.idle_s,
            )
            for rank in self._ranks.values()
        }
