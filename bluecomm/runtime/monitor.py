"""Watches a rank's outstanding operations: warnings, deadlines, news of lost peers.

Two clocks run here (they are apart on purpose). A *dead* rank is news from the agent
and fails what waits for it at once. A *silent* rank that lives may just be busy:
operations that wait for it are reported after 10, 60 and 300 s, and their deadline is
put off while it uses its processor.
"""

from __future__ import annotations

import collections
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from bluecomm.errors import BluecommError
from bluecomm.runtime.failure import MISMATCH
from bluecomm.runtime.stall import StallReport

if TYPE_CHECKING:
    from bluecomm._native import PendingOperation
    from bluecomm.runtime.world import World

_log = logging.getLogger("bluecomm")

_TICK_S = 1.0
_WARN_AFTER_S = (10.0, 60.0, 300.0)
# A rank whose process has used its processor this recently is busy, not stuck.
_BUSY_WITHIN_S = 30.0
# A deadline this close is put off when the awaited ranks are busy.
_DEADLINE_NEAR_S = 15.0


class Monitor:
    """Daemon thread of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stop = threading.Event()
        self._warned: dict[int, int] = {}
        self._finished: collections.deque[tuple[float, int, str]] = collections.deque()
        self._link = world.rendezvous.link
        self._thread = threading.Thread(
            target=self._run, name="bluecomm-monitor", daemon=True
        )
        self._thread.start()
        if self._link is not None:
            self._link.listen(self._on_news)

    def close(self) -> None:
        """Stop watching."""
        if self._link is not None:
            self._link.listen(None)
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stop.wait(_TICK_S):
            self._world.reap()
            self._pass_on_finished()
            self._look_at_pending()

    def _pass_on_finished(self) -> None:
        """Tell the engine of ranks that ended well, once their last bytes are in."""
        while self._finished and self._finished[0][0] < time.monotonic() - _TICK_S:
            _, rank, text = self._finished.popleft()
            self._world.engine.peer_lost(rank, text)

    def _look_at_pending(self) -> None:
        pending = self._world.engine.pending()
        outstanding = {operation["handle"] for operation in pending}
        for handle in list(self._warned):
            if handle not in outstanding:
                del self._warned[handle]
        for operation in pending:
            warnings = self._warned.get(operation["handle"], 0)
            if (
                warnings < len(_WARN_AFTER_S)
                and operation["age_s"] >= _WARN_AFTER_S[warnings]
            ):
                self._warned[operation["handle"]] = warnings + 1
                self._report(operation)
            elif self._near_deadline(operation):
                self._ask(operation)

    def _near_deadline(self, operation: PendingOperation) -> bool:
        """Whether to ask, every few seconds, if a soft deadline must be put off."""
        if self._world.has_hard_deadline(operation["handle"]):
            return False
        limit_s = self._world.config.operation_timeout_s
        age_s = operation["age_s"]
        return age_s > limit_s - _DEADLINE_NEAR_S and int(age_s) % 5 == 0

    def _report(self, operation: PendingOperation) -> None:
        """Warn of an operation that waits; the table follows when the agent has it."""
        last = self._warned[operation["handle"]] == len(_WARN_AFTER_S)
        if last:
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        if self._link is None:
            _log.warning("%s", StallReport.alone(self._world.rank, operation))
        else:
            self._ask(operation)

    def _ask(self, operation: PendingOperation) -> None:
        if self._link is None:
            return
        try:
            self._link.send(
                {
                    "type": "stall",
                    "op": operation["name"],
                    "kind": operation["kind"],
                    "age_s": operation["age_s"],
                    "waiting_for": operation["waiting_for"],
                }
            )
        except BluecommError as error:
            _log.warning("%s", error)

    # -- news, on the link's thread ---------------------------------------------------

    def _on_news(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind == "lost":
            self._world.engine.peer_lost(int(frame["rank"]), str(frame["text"]))
        elif kind == "finished":
            text = f"rank {frame['rank']} on {frame['host']} had finished (exit 0)"
            self._finished.append((time.monotonic(), int(frame["rank"]), text))
        elif kind == "frozen":
            _log.warning("%s", frame["text"])
        elif kind == "query_pending":
            self._answer(frame)
        elif kind == "stall_report":
            self._on_report(frame)
        elif kind == "agent_lost":
            self._on_agent_lost(frame)

    def _answer(self, frame: dict[str, Any]) -> None:
        operations = [
            {
                "name": operation["name"],
                "kind": operation["kind"],
                "age_s": operation["age_s"],
                "waiting_for": operation["waiting_for"],
                "blocking": self._world.is_waited_for(operation["handle"]),
            }
            for operation in self._world.engine.pending()
        ]
        assert self._link is not None
        self._link.send({"type": "pending", "id": frame["id"], "ops": operations})

    def _on_report(self, frame: dict[str, Any]) -> None:
        now = [
            operation
            for operation in self._world.engine.pending()
            if operation["name"] == frame["op"]
        ]
        if not now:
            return  # it has completed in the meantime
        operation = now[0]
        report = StallReport.from_frame(self._world.rank, operation, frame)
        if cycle := report.find_cycle():
            self._world.engine.fail(operation["handle"], MISMATCH, cycle)
        elif report.all_busy(_BUSY_WITHIN_S) and self._near_deadline(operation):
            self._world.engine.extend_deadline(operation["handle"], 60.0)
        elif not self._near_deadline(operation):
            _log.warning("%s", report)

    def _on_agent_lost(self, frame: dict[str, Any]) -> None:
        """The launcher is gone: this process must not outlive it."""
        if self._stop.is_set():
            return
        _log.error("%s; rank %d ends", frame["text"], self._world.rank)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
