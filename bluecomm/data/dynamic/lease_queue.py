"""Leases for the next batches of a rank, fetched in the background."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from bfrun.wording import count, format_ranks
from bluecomm.data.dynamic.asker import Asker
from bluecomm.data.dynamic.cell import Cell
from bluecomm.data.dynamic.exchange import Lease, LedgerReply
from bluecomm.data.dynamic.intervals import Intervals

_log = logging.getLogger("bluecomm")

# A rank that waits for others asks again after a pause. The pause begins with the first
# of these times and doubles up to the second one times the number of ranks, so all
# ranks together make at most 1000 requests per second.
_POLL_S = 0.002
_POLL_S_PER_RANK = 0.001
# How long the thread leaves the cores to ranks that begin their step at this time.
_REST_S = 0.005
# A rank makes at least this number of requests in the time after which it counts as
# silent.
_BEATS = 4


class LeaseQueue:
    """Keeps a lease ready for the next batch, so that nobody waits for the ledger.

    A thread makes all requests. It begins with the first batch, when the loader's
    workers have been forked, and ends with ``close``, which also runs at the end of the
    interpreter.

    Args:
        cell: The ledger.
        asker: Writes the requests.
        in_rounds: Whether all ranks make equally many steps.
        lease_s: Seconds after which others take this rank for silent.
        user: Name for errors.
    """

    def __init__(
        self, cell: Cell, asker: Asker, *, in_rounds: bool, lease_s: float, user: str
    ) -> None:
        self._cell = cell
        self._asker = asker
        self._in_rounds = in_rounds
        self._beat_s = lease_s / _BEATS
        self._user = user
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ready: deque[Lease] = deque()
        self._finished: list[int] = []
        # Leases that were granted, so also the step for which the next one is.
        self._granted = 0
        # Requests that the program waits for, and those of them that were answered.
        self._asked = 0
        self._answered = 0
        # Whether the program has its batch, so that there is time to ask for another.
        self._has_time = False
        # Whether nothing was granted since this rank last finished a lease.
        self._is_dry = False
        self._is_over = self._is_closing = False
        self._last: LedgerReply | None = None
        self._error: BaseException | None = None
        # The positions that count at the end of the pass.
        self._counts: Intervals | None = None

    def ready(self) -> Lease | None:
        """Return the next lease, or None if there is none at present.

        It waits for a reply of the ledger at most, not for other ranks.
        """
        with self._changed:
            if not self._ready and not self._is_over:
                self._ask(lambda: bool(self._ready))
            return self._ready.popleft() if self._ready else None

    def wait(self) -> Lease | None:
        """Return the next lease, or None if all records are done.

        Raises:
            TimeoutError: No lease has begun or ended anywhere for the deadline.
        """
        changes, since = -1, time.monotonic()
        pause_s = _POLL_S
        while (lease := self.ready()) is None and not self._is_over:
            assert self._last is not None
            now = time.monotonic()
            if self._last["changes"] != changes:
                changes, since = self._last["changes"], now
            elif now - since > self._cell.deadline_s:
                raise self._stuck(self._last)
            time.sleep(pause_s)
            longest_s = max(_POLL_S_PER_RANK * self._cell.ranks(), _POLL_S)
            pause_s = min(2 * pause_s, longest_s)
        return lease

    def prefetch(self) -> None:
        """Ask for another lease from now on, while the program makes a step."""
        with self._changed:
            self._has_time = True
            self._changed.notify_all()

    def finish(self, lease: Lease) -> None:
        """Note that the program has used the records of a lease."""
        if lease["id"] is None:
            return
        with self._changed:
            self._finished.append(lease["id"])
            # The thread says so with its next request for a lease, which follows soon.
            self._is_dry = False

    def done(self) -> Intervals:
        """Return what the ledger counts, with all that this rank has finished."""
        with self._changed:
            if not self._is_over:
                self._ask()
        return self.known()

    def known(self) -> Intervals:
        """Return what the ledger counts, as far as this rank has heard."""
        return self._cell.ledger()["done"]

    def epoch(self) -> int:
        """Return the epoch of the ledger; call it after ``ready``."""
        return self._cell.ledger()["epoch"]

    def close(self) -> Intervals:
        """Give back all leases, end the thread, and return what the ledger counts.

        An error is logged: the leases return when others miss this rank. A second call
        does nothing, because at the end of the interpreter it may come late.
        """
        if self._counts is not None:
            return self._counts
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self.close)
        self._counts = self.known()
        self._cell.close()
        return self._counts

    def _ask(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Wait for the reply to a request that the thread makes from now on.

        Args:
            is_enough: Returns whether the reply to an earlier request is enough.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="bluecomm leases", daemon=True
            )
            self._thread.start()
            atexit.register(self.close)
        self._asked += 1
        mine = self._asked
        self._changed.notify_all()
        self._changed.wait_for(
            lambda: self._answered >= mine or is_enough() or self._error is not None
        )
        if self._error is not None and not is_enough():
            raise self._error

    def _run(self) -> None:
        try:
            while self._make_request():
                pass
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            if self._is_closing:
                # Usual after the program has ended its part in the job.
                text = "%s: the leases were not given back: %s"
                _log.info(text, self._user, error)

    def _make_request(self) -> bool:
        """Wait until there is something to say, and say it; return whether to go on."""
        with self._changed:
            self._changed.wait_for(self._has_news, self._beat_s)
            self._changed.wait_for(self._is_urgent, _REST_S)
            if self._is_over:
                # The others may have gone on to the next epoch, or ended. The epoch is
                # over, so others have finished the batches that this rank still lists.
                self._report_repeats(len(self._finished))
                self._finished = []
                self._answered = self._asked
                self._changed.notify_all()
                return not self._is_closing
            finished, self._finished = self._finished, []
            asked, number = self._asked, self._granted
            wants = not (self._ready or self._is_closing)
            is_last = self._is_closing
            self._has_time = False
        reply = self._asker.ask(
            finished=finished,
            wants=wants,
            round_number=number if self._in_rounds else None,
        )
        self._report_repeats(len(reply["refused"]))
        if is_last:
            if not reply["is_over"]:
                self._asker.leave()
            return False
        with self._changed:
            self._last = reply
            if reply["granted"] is not None:
                self._ready.append(reply["granted"])
                self._granted += 1
            self._is_dry = wants and reply["granted"] is None
            self._is_over = self._is_dry and reply["is_over"]
            self._answered = asked
            self._changed.notify_all()
        return True

    def _report_repeats(self, batches: int) -> None:
        """Warn of batches that this rank finished after it had lost their leases."""
        if batches:
            _log.warning(
                "%s: rank %s was silent for so long that others use %s again; pass a "
                "longer lease_s if its steps take that long",
                self._user,
                self._cell.holder,
                count(batches, "batch", "batches"),
            )

    def _has_news(self) -> bool:
        may_ask = self._has_time and not self._is_over
        return self._is_urgent() or (may_ask and not (self._ready or self._is_dry))

    def _is_urgent(self) -> bool:
        return self._is_closing or self._asked > self._answered

    def _stuck(self, last: LedgerReply) -> TimeoutError:
        others = [int(each) for each in last["holding"] if each != self._cell.holder]
        who = format_ranks(others, noun=True) if others else "no rank"
        return TimeoutError(
            f"{self._user}: rank {self._cell.holder} waits for the last records of the "
            f"epoch, which {who} has leased, and no lease has begun or ended for "
            f"{self._cell.deadline_s:.0f} s; see what holds up the training there, or "
            "raise the deadline of operations, or of the process group"
        )
