"""The world: one process's engine, its rank, and the requests that it has started."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bfrun.wording import format_ranks
from bluecomm.config import Config
from bluecomm.errors import CommunicationTimeout, ShutdownError, SuspendedError
from bluecomm.runtime import fork
from bluecomm.runtime.call import Call, KeptMemory, Result
from bluecomm.runtime.completions import Callback, Completions
from bluecomm.runtime.engine_start import make_engine
from bluecomm.runtime.failure import CLOSED
from bluecomm.runtime.handle import FinishedHandle, RequestHandle
from bluecomm.runtime.input_waits import InputWaits
from bluecomm.runtime.layout import layout_of
from bluecomm.runtime.member_feed import MemberFeed
from bluecomm.runtime.members import Members
from bluecomm.runtime.monitor import Monitor
from bluecomm.runtime.notice import Notice
from bluecomm.runtime.peers import PeerRecord, meet_peers
from bluecomm.runtime.process_sets import ProcessSets
from bluecomm.runtime.rendezvous.rendezvous import Rendezvous
from bluecomm.runtime.stats import Stats, to_stats
from bluecomm.runtime.unchanged_calls import UnchangedCalls

if TYPE_CHECKING:
    from bluecomm._native import (
        Completion,
        Engine,
        Recorder,
        SharedMemory,
    )

_log = logging.getLogger("bluecomm")

# Starting a request releases dropped ones that have ended if at least this many are
# kept; always while a transport still reads the memory of a failed one.
_REAP_AT = 256

_CLOSE_TIMEOUT_S = 5.0
# How long the peers may take to receive the error that ends this program.
_LAST_WORDS_S = 1.0

# Memory that a transport was still reading when its world ended. It is never freed.
_held: list[object] = []


class World:
    """The engine of this process and everything that belongs to one ``init``.

    Args:
        config: Settings.
        rendezvous: Finds the other ranks.
        memory: Allocator of shared memory; it outlives the world.
        topology: Digest of this rank's first topology, on which all ranks must agree.
        recorder: Records the events of a timeline, if one is made.

    Raises:
        CommunicationTimeout: Some ranks did not arrive in time.
        MismatchError: The ranks have different versions of bluecomm, or were started
            with different settings.
    """

    def __init__(
        self,
        config: Config,
        rendezvous: Rendezvous,
        memory: SharedMemory,
        topology: str,
        recorder: Recorder | None = None,
    ) -> None:
        self.config = config
        self.recorder = recorder
        self.rendezvous = rendezvous
        self.assignment = rendezvous.assignment
        # The rendezvous may pass the news of a later world at the end of this one.
        self.news = rendezvous.news
        self.memory = memory
        self.pid = os.getpid()
        self.rank = self.assignment.rank
        self.size = self.assignment.size
        self._lock = threading.Lock()  # held while requests are released
        # What each request uses, by its id. It must live as long as it is listed here.
        self._kept: dict[int, Any] = {}
        self._reap_at = _REAP_AT
        self._dropped: collections.deque[int] = collections.deque()
        self._forgotten: set[int] = set()
        self._hard_limits_s: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._waiters: set[int] = set()
        self._closed = False
        self._is_ending = False
        self._told_failing = False
        # Whether this rank has yet to join the job that the others run.
        self.is_joining = False
        # Whether the program uses another world than this one.
        self.is_spare = False
        # Number of times that all ranks have joined.
        self.join_rounds = 0
        self.unchanged_calls = UnchangedCalls()
        self.input_waits = InputWaits()
        self.process_sets = ProcessSets()
        self.members = Members(
            self.size, survives_losses=self.assignment.survives_losses
        )
        self.notice = Notice()
        self._suspensions = 0
        self._is_suspended = False
        self._engine = make_engine(config, rendezvous, memory, recorder)
        self._completions = Completions(self._engine)
        self.peers = self._meet(topology)
        self.layout = layout_of(
            [peer.machine for peer in self.peers], config.ranks_per_machine
        )
        self._engine.start(
            [
                {
                    "rank": peer.rank,
                    "host": peer.host,
                    "machine": peer.machine,
                    "pid": peer.pid,
                    "offers": peer.offers,
                }
                for peer in self.peers
            ]
        )
        self.member_feed = MemberFeed(self) if self.members.survives_losses else None
        self._monitor = Monitor(self)
        self._report_links()

    # -- starting ---------------------------------------------------------------------

    def _meet(self, topology: str) -> list[PeerRecord]:
        mine = PeerRecord(
            rank=self.rank,
            host=self.assignment.host,
            machine=self.assignment.machine,
            pid=self.pid,
            offers=self._engine.offers(),
            ranks_per_machine=self.config.ranks_per_machine,
            topology=topology,
            encryption=self.config.encryption,
        )
        return meet_peers(self.rendezvous, self.config, mine)

    def _report_links(self) -> None:
        links = {
            peer.rank: self._engine.transport_of(peer.rank)
            for peer in self.peers
            if peer.rank != self.rank
        }
        if (encryption := self.config.encryption) != "off":
            tcp = f"tcp ({encryption})"
            links = {rank: tcp if to == "tcp" else to for rank, to in links.items()}
        _log.info(
            "rank %d of %d on %s (%s); transports %s",
            self.rank,
            self.size,
            self.assignment.host,
            self.assignment.source,
            links,
        )

    # -- groups and operations --------------------------------------------------------

    def add_group(
        self, group_id: int, ranks: Sequence[int], machine_of: Sequence[int]
    ) -> None:
        """Make a set of ranks known to the engine."""
        self._engine.add_group(group_id, ranks, machine_of)

    def remove_group(self, group_id: int) -> None:
        """Have the engine forget a set of ranks; its operations fail."""
        if not self._closed and os.getpid() == self.pid:
            self._engine.remove_group(group_id)

    def transport_of(self, rank: int) -> str:
        """Return the kind of the link to a peer: ``"self"``, ``"shm"``, ...."""
        return self._engine.transport_of(rank)

    def stats(self) -> Stats:
        """Return the statistics of the engine."""
        hosts = {peer.rank: peer.host for peer in self.peers}
        counted = self._engine.stats()
        self.unchanged_calls.add_to(counted["operations"])
        return to_stats(counted, hosts, self.members.gone, self.input_waits)

    def reset_stats(self) -> None:
        """Reset the statistics of the engine."""
        self._engine.reset_stats()
        self.unchanged_calls.reset()
        self.input_waits.reset()

    def start(self, call: Call[Result]) -> RequestHandle[Result]:
        """Start an operation whose name and group are known, and return its handle.

        Raises:
            ShutdownError: After ``shutdown``, or in a forked child.
            SuspendedError: The world is suspended.
        """
        name = call.name
        assert name is not None
        self.check_usable()
        if self._is_suspended:
            raise self._suspended(call.kind, name)
        timeout_s = call.timeout_s
        call.limit_s = (
            self.config.operation_timeout_s if timeout_s is None else timeout_s
        )
        # The engine stores the call in _kept before a signal handler can run. It stores
        # a nonblocking call before it starts the operation.
        try:
            if call.blocking or self._completions.is_here():
                self._waiters.add(threading.get_ident())
            number = self._engine.submit(call, self._kept)
        except BaseException:
            self._forget_kept(call)
            raise
        if number == 0:
            return FinishedHandle(self, number, call.kind, name, call.finish)
        self._note_started(number, timeout_s)
        return RequestHandle(self, number, call.kind, name, call.finish)

    def run_after(
        self,
        handles: Sequence[RequestHandle[Any]],
        call: Call[None],
        started: list[RequestHandle[None]],
    ) -> None:
        """Wait for requests, then run a call without memory.

        The program gets back control after at most about 0.1 s.

        Args:
            handles: The requests.
            call: The call.
            started: Gets the handle of the call, even if a signal handler raises. It
                stays empty if the call has not started, because a request has failed or
                still runs, or another thread has removed the group.
        """
        self.check_usable()
        assert call.name is not None
        call.limit_s = self.config.operation_timeout_s
        self._waiters.add(threading.get_ident())
        ids = [one.number for one in handles]
        numbers: list[int | None] = []
        try:
            # The list has the id before a signal handler can raise.
            numbers.extend(map(self._engine.run_after, [ids], [call]))
        except ValueError:  # there is no such group any more
            pass
        finally:
            for number in numbers:
                if number is not None:
                    kind = RequestHandle if number else FinishedHandle
                    started.append(
                        kind(self, number, call.kind, call.name, call.finish)
                    )

    def refuse(self, call: Call[None], reason: str) -> None:
        """Count a call that is not made; see ``Communicator.refuse``."""
        self.check_usable()
        self.check_running(call.kind, call.name)
        self._engine.refuse(call, reason, call.parameters is None)

    def start_request(
        self,
        submit: Callable[[dict[int, Any], Any], int],
        keep: object,
        timeout_s: float | None,
    ) -> int:
        """Start a request about a window and keep what it uses.

        Args:
            submit: Starts the request and returns its id, or 0 if it has ended. Called
                with the table of what is kept and ``keep``, which it enters there.
            keep: Object that must live until the request has ended. It identifies the
                request, so no other one may use it.
            timeout_s: Deadline that the program gave, if any. It is never extended.

        Returns:
            The id of the request; 0 if it has ended.
        """
        try:
            number = submit(self._kept, keep)
        except BaseException:
            self._forget_kept(keep)
            raise
        if number:
            self._note_started(number, timeout_s)
        return number

    def _note_started(self, number: int, timeout_s: float | None) -> None:
        if timeout_s is not None:
            self._hard_limits_s[number] = timeout_s
        if len(self._kept) >= self._reap_at:
            self.reap()

    def _forget_kept(self, keep: object) -> None:
        """Drop a request whose handle an exception of a signal handler has lost."""
        for number, kept in list(self._kept.items()):
            if kept is keep:
                self.forget(number)

    def output(self, number: int) -> tuple[Any, list[int]]:
        """Return the result that the engine allocated: memory and rows per source."""
        return self._engine.output(number)

    def source_of(self, number: int) -> int:
        """Return the rank whose message a receive has taken."""
        return self._engine.source_of(number)

    def is_done(self, number: int) -> bool:
        """Return whether a request has ended."""
        return self._closed or self._engine.done(number)

    def wait(self, number: int, timeout_s: float | None) -> Completion | None:
        """Wait until a request has ended; return ``None`` if ``timeout_s`` passed.

        Raises:
            SuspendedError: The engine was suspended before the request had ended.
        """
        self.check_usable()
        suspensions = self._suspensions
        self._waiting.add(number)
        if not self._completions.is_here():  # a callback waits for what has ended
            self._waiters.add(threading.get_ident())
        try:
            limit_s = float("inf") if timeout_s is None else timeout_s
            completion = self._engine.wait(number, limit_s)
            was_suspended = self._is_suspended or self._suspensions > suspensions
            if completion is None and was_suspended:
                raise self._suspended("wait", None)
            return completion
        finally:
            self._waiting.discard(number)

    def on_finish(self, number: int, callback: Callback) -> None:
        """Call ``callback`` once a request has ended; see ``Handle.on_finish``."""
        if not self._closed:
            self.check_usable()
        self._completions.add(number, callback)

    def blocks_program(self, number: int) -> bool:
        """Return whether the only thread that ever waited here waits for a request.

        If so, no other thread will start the operations that other ranks wait for.
        """
        return number in self._waiting and len(self._waiters) == 1

    def is_in_use(self, address: int, nbytes: int) -> bool:
        """Return whether an outstanding request uses some of this memory."""
        self.reap()
        return any(
            kept.uses(address, nbytes)
            for kept in list(self._kept.values())
            if isinstance(kept, Call | KeptMemory)
        )

    def is_waited_for(self, number: int) -> bool:
        """Return whether a thread of this process waits for a request."""
        return number in self._waiting

    def is_standing(self, number: int) -> bool:
        """Return whether a request waits for what may come at any time."""
        kept = self._kept.get(number)
        return isinstance(kept, Call) and kept.is_standing

    def has_hard_deadline(self, number: int) -> bool:
        """Return whether the program gave a request's deadline, which then stands."""
        return number in self._hard_limits_s

    def limit_s(self, number: int) -> float:
        """Return the deadline that a request was started with, in seconds."""
        return self._hard_limits_s.get(number, self.config.operation_timeout_s)

    def release(self, number: int) -> None:
        """Release a request that has been waited for."""
        self._hard_limits_s.pop(number, None)
        if self._closed:
            return
        try:
            if self._engine.release(number):
                self._kept.pop(number, None)
            else:
                self._reap_at = 0
        except BaseException:
            # A signal handler may raise once the engine has forgotten the id.
            if number not in self._engine.held():
                self._kept.pop(number, None)
            raise

    def forget(self, number: int) -> None:
        """Release a request that nobody will wait for, as soon as it has ended.

        The garbage collector calls this at any point, so it takes no lock.
        """
        self._dropped.append(number)

    def abandon(self, number: int, why: str) -> None:
        """End a request that nobody waits for with a failure, unless it has ended."""
        if not self._closed:
            with contextlib.suppress(ValueError):  # it has been released
                self._engine.fail(number, CLOSED, why)
        self.forget(number)

    def reap(self) -> None:
        """Release dropped requests that have ended, and free unused tensors."""
        with self._lock:
            # Requests that end after this are found by the next call.
            held = bool(self._engine.held())
            for number in self._engine.finished():
                self._kept.pop(number, None)
            # A program may have many requests outstanding.
            self._reap_at = 0 if held else max(_REAP_AT, 2 * len(self._kept))
            while self._dropped:
                self._forgotten.add(self._dropped.popleft())
            over = {n for n in self._forgotten if n not in self._kept}
            self._forgotten -= over
        for number in over:
            self.release(number)

    # -- joining ----------------------------------------------------------------------

    def begin_without(self, ranks: Sequence[int]) -> None:
        """Begin a world in which some ranks are missing, as if they were lost at once.

        Returns when the others have agreed on it.

        Raises:
            CommunicationTimeout: They have not within ``BLUECOMM_START_TIMEOUT_S``.
        """
        if not ranks:
            return
        self.members.begin_without(ranks)
        for rank in ranks:
            text = f"rank {rank} has been lost, and has not joined again yet"
            if self.member_feed is not None:
                self.member_feed.report(rank, "lost", text)
            self._engine.peer_lost(rank, text)
        limit_s = self.config.start_timeout_s
        if not self.members.await_missing(limit_s):
            raise CommunicationTimeout(
                f"init on rank {self.rank}: the ranks have come to no agreement "
                f"within {limit_s:g} s to go on without "
                f"{format_ranks(ranks, noun=True)}; look at the ranks' output",
                operation="init",
                rank=self.rank,
                timeout_s=limit_s,
            )

    def wait_for_started(self) -> None:
        """Wait until all requests that this rank has started have ended, or failed.

        Receives whose message may never come are left out.
        """
        for request in self._engine.pending():
            if self.is_standing(request["id"]):
                continue
            with contextlib.suppress(ValueError):  # it may be released by now
                self.wait(request["id"], None)

    def leave_join(self, sequence: int) -> None:
        """End a round of joins; calls are counted anew on all ranks.

        Args:
            sequence: Number above those of all ranks' calls.
        """
        self._engine.leave_join(sequence)
        self.join_rounds += 1

    # -- suspending -------------------------------------------------------------------

    def suspend(self) -> None:
        """Stop all messages and the threads of this world until ``resume``."""
        self.check_usable()
        self._suspensions += 1
        self._is_suspended = True
        self._monitor.suspend()
        self._engine.suspend()

    def resume(self) -> None:
        """Continue after ``suspend``; deadlines move by the time in between."""
        if self._is_suspended and not self._closed:
            self._is_suspended = False
            self._engine.resume()
            self._monitor.resume()

    def check_running(self, operation: str, name: str | None) -> None:
        """Raise an error if the world is suspended.

        Raises:
            SuspendedError: The world is suspended.
        """
        if self._is_suspended:
            raise self._suspended(operation, name)

    def _suspended(self, operation: str, name: str | None) -> SuspendedError:
        return SuspendedError.describe(
            "bluecomm is suspended",
            operation=operation,
            name=name,
            rank=self.rank,
            remedy="Call bluecomm.resume() first; outstanding operations then continue",
        )

    @property
    def engine(self) -> Engine:
        """The native engine, for the monitor."""
        return self._engine

    # -- ending -----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the world has ended."""
        return self._closed

    @property
    def is_ending(self) -> bool:
        """Whether the world is closed or being closed, so that its operations fail."""
        return self._is_ending

    def check_usable(self) -> None:
        """Raise an error unless operations can run here.

        Raises:
            ShutdownError: After ``shutdown``, or in a forked child.
        """
        if self._closed:
            raise ShutdownError(
                "bluecomm was shut down after this process set, process group or "
                "optimizer was made; call bluecomm.init(), then make it again. Call "
                "torch.distributed.destroy_process_group() before bluecomm.shutdown()",
                rank=self.rank,
            )
        if fork.pid != self.pid:
            raise ShutdownError(
                f"this process ({fork.pid}) is a fork of rank {self.rank} "
                f"(pid {self.pid}); only the rank itself communicates",
                rank=self.rank,
            )

    def tell_failing(self, what: str) -> None:
        """Tell the peers at once that an error ends this program.

        Their operations that need this rank fail with the reason. Does nothing in a
        world that has ended.

        Args:
            what: The program's last act, such as ``raised KeyError: 'x'``.
        """
        if not self._closed:
            self._told_failing = True
            self._engine.tell_failing(what)

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        self._is_ending = True
        self._monitor.close()
        if self.member_feed is not None:
            self.member_feed.stop()
        yield
        self._completions.close()
        if self.member_feed is not None:
            self.member_feed.join()
        self._closed = True
        _held.extend(self._kept[n] for n in self._engine.held() if n in self._kept)
        self._kept.clear()

    def retire(self) -> None:
        """Say goodbye to the peers and end the engine, but stay in the job."""
        if not self._closed and os.getpid() == self.pid:
            with self._closing():
                self._engine.close(_CLOSE_TIMEOUT_S)
                self._engine.take_late_failure()

    def close(self, *, orderly: bool = True) -> None:
        """End the engine; outstanding operations fail with ``ShutdownError``.

        Args:
            orderly: Say goodbye to the peers and wait (at most 5 s) until they have
                received all messages. Otherwise stop at once, or after 1 s at most if
                the peers are still being told of a failure.
        """
        if self._closed or os.getpid() != self.pid:
            return
        last_words_s = _LAST_WORDS_S if self._told_failing else 0.0
        with self._closing():
            self._engine.close(_CLOSE_TIMEOUT_S if orderly else last_words_s)
            if late := self._engine.take_late_failure():
                _log.warning("rank %d ends, but %s", self.rank, late.text)
            if orderly:
                self.rendezvous.goodbye()
