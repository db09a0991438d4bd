"""Reaches agents again whose connections have ended, while the job goes on."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import Protocol

from bfrun.driver.agent_session import AgentSession
from bfrun.launch.relay import ReachedAgent
from bfrun.silence import MARGIN_S
from bfrun.wording import format_ranks

# Seconds before the first attempt, in which the exit status of an agent that has ended
# arrives. Each further attempt waits twice as long, up to the longest wait.
_FIRST_S = 0.5
_LONGEST_S = 30.0
# Seconds in which an agent that has been reached must answer.
_ANSWER_S = 30.0
# Seconds from the end of an agent's limit to that of the last process of its host.
_GRACE_S = 10.0


def search_limit_s(detached_limit_s: float, link_timeout_s: float) -> float:
    """Return the seconds after which an agent that cannot be reached has ended.

    It notices the end of its connection when the link timeout has passed, or before.
    """
    return detached_limit_s + link_timeout_s + MARGIN_S + _GRACE_S


class _EndRanks(Protocol):
    """Notes that some ranks are lost with their agent."""

    def __call__(
        self,
        ranks: list[int],
        reason: str,
        noticed_after_s: float,
        *,
        is_certain: bool,
    ) -> None: ...


class SearchResult(enum.Enum):
    """State of an agent whose connection has ended, as far as the driver knows."""

    UNKNOWN = enum.auto()
    # It has ended for certain, with all of its ranks.
    GONE = enum.auto()
    # It was not reached until its own limit had passed, but nothing proves its end.
    GIVEN_UP = enum.auto()


class AgentSearch:
    """Reaches one agent again.

        WAITING --due--> CONNECTING (in a thread) --connected--> ASKING
           ^                 | failed           the connection ends, |
           +-----------------+-------------------- or no answer -----+

    The search is over once ``session.started`` is set, because the agent has answered,
    or ``step`` returns another result than ``UNKNOWN``.

    Args:
        session: The session whose connection has ended.
        reach: Reaches the agent. Called in a thread.
        key: Key of the job.
        limit_s: Seconds after which the search is given up.
        wake: Called in a thread when ``step`` has something to do.
        clock: Seconds on a clock that never goes back.

    Attributes:
        error: Why the latest attempt has failed, or "".
    """

    def __init__(
        self,
        session: AgentSession,
        reach: Callable[[], ReachedAgent],
        key: str,
        limit_s: float,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.error = ""
        self._reach = reach
        self._key = key
        self._wake = wake
        self._until = clock() + limit_s
        self._wait_s = _FIRST_S
        self._next_at = clock() + _FIRST_S
        self._answer_until: float | None = None
        self._thread: threading.Thread | None = None
        # Guards the fields below, which the thread shares.
        self._lock = threading.Lock()
        self._reached: ReachedAgent | Exception | None = None
        self._has_tried = False
        self._is_closed = False

    def step(self, now: float) -> SearchResult:
        """Do what is due, and return what is known of the agent."""
        if self.session.has_surely_ended:
            return SearchResult.GONE
        if self._thread is not None:
            self._look_at_thread(now)
        elif self._answer_until is not None:
            self._look_at_answer(now)
        elif now >= self._until:
            return SearchResult.GIVEN_UP
        elif now >= self._next_at:
            name = f"bfrun-search-{self.session.host.name}"
            self._thread = threading.Thread(
                target=self._connect, name=name, daemon=True
            )
            self._thread.start()
        return SearchResult.UNKNOWN

    def close(self) -> None:
        """End the search. A connection that is being made is closed once it exists."""
        with self._lock:
            self._is_closed = True
            reached, self._reached = self._reached, None
        if isinstance(reached, ReachedAgent):
            reached.connection.close()

    def _connect(self) -> None:
        reached: ReachedAgent | Exception
        try:
            reached = self._reach()
        except Exception as error:  # whatever the reason, the host may come back
            reached = error
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._reached, self._has_tried = reached, True
                self._wake()
        if is_closed and isinstance(reached, ReachedAgent):
            reached.connection.close()

    def _look_at_thread(self, now: float) -> None:
        with self._lock:
            reached, self._reached = self._reached, None
            has_tried, self._has_tried = self._has_tried, False
        if not has_tried:
            return
        self._thread = None
        if isinstance(reached, ReachedAgent):
            self._answer_until = now + _ANSWER_S
            self.session.renew(reached, self._key)
        else:
            self.error = f"{reached}"
            self._wait(now)

    def _look_at_answer(self, now: float) -> None:
        assert self._answer_until is not None
        if self.session.lost:
            self.error = self.session.why_lost()
            self._wait(now)
        elif now >= self._answer_until:
            self.session.give_up(f"it did not answer within {_ANSWER_S:g} s")

    def _wait(self, now: float) -> None:
        self._answer_until = None
        self._next_at = now + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_S)


class LostAgents:
    """The agents of a job whose connections have ended, and that may still live.

    Args:
        make_search: Makes the search for the agent of a session.
        end_ranks: Notes that ranks are lost with their agent; ``is_certain`` says
            whether their end is proven.
        say: Shows a line to the user.
    """

    def __init__(
        self,
        make_search: Callable[[AgentSession], AgentSearch],
        end_ranks: _EndRanks,
        say: Callable[[str], None],
    ) -> None:
        self._make_search = make_search
        self._end_ranks = end_ranks
        self._say = say
        self._searches: dict[AgentSession, tuple[AgentSearch, list[int]]] = {}
        self._given_up: set[AgentSession] = set()
        # Sessions whose first failed attempt the user knows.
        self._told: set[AgentSession] = set()

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks of these agents."""
        return frozenset(rank for _, ranks in self._searches.values() for rank in ranks)

    def step(self, session: AgentSession, ranks: list[int], now: float) -> None:
        """Look for the agent of a session if its connection has ended."""
        if session not in self._searches:
            if not session.lost or session.ended or session in self._given_up:
                return
            self._searches[session] = self._make_search(session), ranks
            self._say(
                f"bfrun: the connection to {session.host.name} is lost: "
                f"{session.why_lost()}; {format_ranks(ranks, noun=True)} go on until "
                "they or the others say otherwise; trying to reach the agent again"
            )
        search = self._searches[session][0]
        result = search.step(now)
        if result is SearchResult.UNKNOWN:
            if search.error and session not in self._told:
                self._told.add(session)
                self._say(
                    f"bfrun: {session.host.name} cannot be reached again yet: "
                    f"{search.error}"
                )
            return
        self._end_search(session)
        self._given_up.add(session)
        why, is_certain = session.why_lost(), result is SearchResult.GONE
        if not is_certain:
            why = f"it cannot be reached, and its limit has passed ({search.error})"
        self._end_ranks(ranks, why, 0.0, is_certain=is_certain)

    def is_back(self, session: AgentSession) -> bool:
        """Return whether the agent has just answered; it is no longer lost then."""
        is_back = session in self._searches and session.is_reached
        if is_back:
            self._end_search(session)
            self._say(f"bfrun: {session.host.name} is connected again")
        return is_back

    def close(self) -> None:
        """End all searches."""
        for session in tuple(self._searches):
            self._end_search(session)

    def _end_search(self, session: AgentSession) -> None:
        self._told.discard(session)
        search, _ = self._searches.pop(session)
        search.close()
