"""Starts the ranks of one machine, a few at a time.

Starting a thousand processes takes many seconds on a busy machine. The agent's loop
must send heartbeats in the meantime, so each turn starts ranks for a short time only.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable

from bfrun.agent.rank_process import RankProcess
from bfrun.frames.driver_to_agent import RankCommand, Start

_TURN_S = 0.05


class StartQueue:
    """The ranks that are yet to be started.

    Args:
        socket_path: The agent's socket, to which the ranks connect.
        file_limit: Soft limit on the open files of a rank.
        on_started: Called with each rank, and None or why it could not be started.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        socket_path: str,
        file_limit: int,
        on_started: Callable[[RankProcess, str | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket_path = socket_path
        self._file_limit = file_limit
        self._on_started = on_started
        self._clock = clock
        self._environ: dict[str, str] = {}
        self._waiting: collections.deque[RankCommand] = collections.deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, frame: Start) -> None:
        """Queue ranks."""
        foreign = tuple(frame.foreign_prefixes)
        self._environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(foreign)
        }
        self._environ["BLUECOMM_AGENT_SOCKET"] = self._socket_path
        self._environ["BLUECOMM_JOB"] = frame.job
        self._waiting.extend(frame.processes)

    def step(self) -> None:
        """Start ranks in order for a short time, but at least one."""
        until = self._clock() + _TURN_S
        while self._waiting:
            spec = self._waiting.popleft()
            rank = RankProcess(spec)
            environment = {**self._environ, **spec.env}
            self._on_started(rank, rank.start(environment, self._file_limit))
            if self._clock() >= until:
                return

    def drop(self) -> list[int]:
        """Forget the ranks that have not been started, and return their numbers."""
        dropped = [spec.rank for spec in self._waiting]
        self._waiting.clear()
        return dropped
