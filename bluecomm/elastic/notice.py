"""Notices that a job will be ended soon, on which all ranks act at the same step.

A batch system signals a job some time before it ends it. Under bfrun the notice reaches
every rank through the launcher, so the ranks only agree on the step, and a call without
a notice costs nothing. Under other launchers, each call asks all ranks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

import torch

from bfrun.frames.rank_to_driver import StopRequest
from bluecomm.elastic.group import survives_losses
from bluecomm.errors import BluecommError, CommunicationTimeout
from bluecomm.ops.allreduce import allreduce, allreduce_nonblocking
from bluecomm.ops.reduce_op import Max
from bluecomm.runtime import Handle, current_communicator
from bluecomm.runtime.world import World


def should_stop() -> bool:
    """Return whether this job, or this rank, is about to be ended.

    It returns ``True`` on all ranks in the same call after a notice: SIGUSR1 to bfrun
    or to a rank; without bfrun, also SIGTERM to a rank. In a job that survives losses,
    a signal to a rank concerns that rank alone, which then leaves, and the others go
    on. The first call installs the handlers of the signals, if it is made in the main
    thread. A handler that the program has installed is still called. A second SIGTERM
    acts as if there were no handler.

    Collective: all ranks must call it equally often, until it returns ``True``. Under
    bfrun it does not communicate without a notice. Otherwise it is an allreduce of one
    number, which waits for the slowest rank.

    Raises:
        NotInitializedError: ``init`` has not been called.
        CommunicationTimeout: The ranks have not agreed on the call in time.
        PeerLostError: A rank is lost (without bfrun).
    """
    world = current_communicator().world
    has_agent = world.rendezvous.agent is not None
    _signals.install(with_sigterm=not has_agent)
    if not has_agent:
        flag = torch.tensor([int(_signals.noticed)])
        if world.size > 1:
            flag = allreduce(flag, op=Max, name="elastic.should_stop")
        return _answer(bool(flag))
    if _signals.noticed and survives_losses():
        return _answer(True)
    return _answer(_agreement_of(world).ask(_signals.noticed))


def is_stopping() -> bool:
    """Return whether ``should_stop`` has returned ``True``."""
    return _stopping


class StopAgreement:
    """Agrees on the call of ``should_stop`` from which on it returns ``True``.

    Args:
        world: The world, which has an agent.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._comm = current_communicator()
        self._changed = threading.Condition()
        self._calls = 0
        self._requested = False
        self._is_given = False
        self._first: int | None = None
        world.notice.listen(self._propose)

    def ask(self, noticed: bool) -> bool:
        """Make a call, and return its answer.

        Args:
            noticed: Whether this rank itself has got a signal, of which all must know.
        """
        if noticed and not self._requested:
            self._requested = True
            assert self.world.rendezvous.agent is not None
            self.world.rendezvous.agent.send(StopRequest())
        deadline = time.monotonic() + self.world.config.operation_timeout_s
        with self._changed:
            while self._is_given and self._first is None:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self.world.is_closed:
                    raise CommunicationTimeout.describe(
                        "the ranks have not agreed on the step at which they stop",
                        operation="should_stop",
                        rank=self.world.rank,
                        remedy="Call it equally often on all ranks",
                    )
                self._changed.wait(min(left_s, 1.0))
            self._calls += 1
            return self._first is not None and self._calls >= self._first

    def _propose(self) -> None:
        """Start the agreement, in the thread that hears the notice.

        This rank may train in a later generation by now. It answers nevertheless, as
        others may still be in this one, and would wait for it.
        """
        with self._changed:
            self._is_given = True
            calls = self._calls
        try:
            # Where the job survives losses, the ranks that are left repeat it.
            handle = allreduce_nonblocking(
                torch.tensor([calls]),
                op=Max,
                name="elastic.stop",
                process_set=self._comm,
            )
            handle.on_finish(lambda: self._decide(handle))
        except BluecommError:
            self._set_first(0)

    def _decide(self, handle: Handle[torch.Tensor]) -> None:
        try:
            self._set_first(int(handle.wait()) + 1)
        except BluecommError:  # a rank was lost just now
            self._set_first(0)

    def _set_first(self, first: int) -> None:
        with self._changed:
            self._first = first
            self._changed.notify_all()


class _Signals:
    """The handlers of this process for the signals that are notices."""

    def __init__(self) -> None:
        self.noticed = False
        self._pid = 0
        self._earlier: dict[int, Any] = {}

    def install(self, *, with_sigterm: bool) -> None:
        """Install the handlers, unless this has been done."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._pid == os.getpid() or not is_main:
            return
        self._pid = os.getpid()
        for number in (signal.SIGUSR1, signal.SIGTERM)[: 1 + with_sigterm]:
            self._earlier[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        earlier = self._earlier[number]
        if os.getpid() == self._pid and not (self.noticed and number == signal.SIGTERM):
            self.noticed = True
            if callable(earlier) and earlier is not signal.default_int_handler:
                earlier(number, frame)
            return
        # A second SIGTERM, or a signal to a fork such as a worker of a data loader.
        with contextlib.suppress(TypeError):
            signal.signal(number, earlier)
        os.kill(os.getpid(), number)


_signals = _Signals()
_agreement: StopAgreement | None = None
_stopping = False


def _agreement_of(world: World) -> StopAgreement:
    global _agreement
    if _agreement is None or _agreement.world is not world:
        _agreement = StopAgreement(world)
    return _agreement


def _answer(stops: bool) -> bool:
    global _stopping
    _stopping = _stopping or stops
    return stops
