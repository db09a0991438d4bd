"""The world: one process's engine and its rank, from the start to the end."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bfrun.wording import format_ranks
from bluecomm.config import Config
from bluecomm.device.copy_counts import copy_counts
from bluecomm.device.staging_table import device_work, release_ended
from bluecomm.device.work_counts import work_since
from bluecomm.errors import CommunicationTimeout
from bluecomm.runtime.device_transport import (
    DeviceTransport,
    choose_device_transport,
    device_facts,
)
from bluecomm.runtime.engine_start import make_engine
from bluecomm.runtime.input_waits import InputWaits
from bluecomm.runtime.layout import layout_of
from bluecomm.runtime.member_feed import MemberFeed
from bluecomm.runtime.members import Members
from bluecomm.runtime.monitor import Monitor
from bluecomm.runtime.nccl_calls import NcclCalls
from bluecomm.runtime.notice import Notice
from bluecomm.runtime.peers import PeerRecord, meet_peers
from bluecomm.runtime.process_sets import ProcessSets
from bluecomm.runtime.rendezvous.rendezvous import Rendezvous
from bluecomm.runtime.requests import Requests
from bluecomm.runtime.stats import Stats, to_device_stats, to_stats
from bluecomm.runtime.unchanged_calls import UnchangedCalls

if TYPE_CHECKING:
    from bluecomm._native import Engine, Recorder, SharedMemory

_log = logging.getLogger("bluecomm")

# The row of the timeline that shows which ranks train together.
_EPOCH_ROW = "members"

_CLOSE_TIMEOUT_S = 5.0
# How long the peers may take to receive the error that ends this program.
_LAST_WORDS_S = 1.0


class World(Requests):
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
        engine = make_engine(config, rendezvous, memory, recorder)
        super().__init__(engine, config, rendezvous.assignment.rank)
        self.recorder = recorder
        self.rendezvous = rendezvous
        self.assignment = rendezvous.assignment
        # The rendezvous may pass the news of a later world at the end of this one.
        self.news = rendezvous.news
        self.memory = memory
        self.size = self.assignment.size
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
        # The communicators of which this rank is a member, by the id of their group.
        # Only the layer above knows their type.
        self.communicators: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )
        self._copies_before = copy_counts()
        self._work_before = device_work()
        self.nccl_calls = NcclCalls(self, awaits_device=self.assignment.survives_losses)
        self.members = Members(
            self.size, survives_losses=self.assignment.survives_losses
        )
        self.notice = Notice()
        self.peers = self._meet(topology)
        machines = [peer.machine for peer in self.peers]
        self.layout = layout_of(machines, config.ranks_per_machine)
        # The real machines, also if the settings divide them into simulated ones.
        self.real_layout = layout_of(machines)
        self.device_transport: DeviceTransport = choose_device_transport(
            config, self.rank, self.peers, self.real_layout
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
            device_transport=self.config.device_transport,
            devices=device_facts(
                self.config,
                may_choose=self.size > 1,
            ),
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

    # -- groups and statistics --------------------------------------------------------

    def add_group(
        self,
        group_id: int,
        ranks: Sequence[int],
        machine_of: Sequence[int],
        parent: int | None,
    ) -> None:
        """Make a set of ranks known to the engine.

        Args:
            group_id: Its id, the same on all members.
            ranks: Its members.
            machine_of: The machine of each member.
            parent: Id of the set with which this one is freed, or ``None``.
        """
        self._engine.add_group(group_id, ranks, machine_of, parent)

    def remove_group(self, group_id: int) -> None:
        """Have the engine forget a set of ranks; its operations fail."""
        if not self._closed and os.getpid() == self.pid:
            self._engine.remove_group(group_id)
            self.nccl_calls.forget(group_id)

    def transport_of(self, rank: int) -> str:
        """Return the kind of the link to a peer: ``"self"``, ``"shm"``, ...."""
        return self._engine.transport_of(rank)

    def limit_sending(self, streams: int, chunk_nbytes: int) -> None:
        """Limit the streams of this rank's links over TCP, and set the size of chunks.

        It holds for what all operations send from now on. No other rank needs to know
        it, and no result depends on it.

        Args:
            streams: The most streams of a link that carry chunks, from 1 to 16.
            chunk_nbytes: Size of chunks, a power of two from 64 bytes to 256 KiB, or 0:
                256 KiB on a single stream and 64 KiB on several.

        Raises:
            ValueError: A value is out of its range.
        """
        self._engine.limit_sending(streams, chunk_nbytes)

    def stats(self) -> Stats:
        """Return the statistics of the engine."""
        hosts = {peer.rank: peer.host for peer in self.peers}
        counted = self._engine.stats()
        self.unchanged_calls.add_to(counted["operations"])
        generation = self.assignment.epoch
        gone, waits = self.members.gone, self.input_waits
        devices = to_device_stats(
            self.nccl_calls.counts(),
            copy_counts().since(self._copies_before),
            work_since(device_work(), self._work_before),
            counted["overlapped"],
        )
        return to_stats(counted, hosts, gone, waits, generation, devices)

    def show_epochs(self) -> None:
        """Show in the timeline, from now on, which ranks train together."""
        if self.members.survives_losses:
            self.members.listen(self._show_epoch)
            self._show_epoch()

    def _show_epoch(self) -> None:
        if self.recorder is None or self.is_spare:
            return
        number, left = len(self.members.gone), self.members.left
        text = f"epoch {number}: {format_ranks(left, noun=True)}"
        if generation := self.assignment.epoch:
            text = f"generation {generation}, {text}"
        self.recorder.end(_EPOCH_ROW)  # of the epoch before, if there was one
        self.recorder.begin(text, _EPOCH_ROW)

    def reset_stats(self) -> None:
        """Reset the statistics of the engine."""
        self._engine.reset_stats()
        self.unchanged_calls.reset()
        self.input_waits.reset()
        self.nccl_calls.reset_counts()
        self._copies_before = copy_counts()
        self._work_before = device_work()

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
        self.nccl_calls.suspend()
        self._engine.suspend()

    def resume(self) -> None:
        """Continue after ``suspend``; deadlines move by the time in between."""
        if self._is_suspended and not self._closed:
            self._is_suspended = False
            self._engine.resume()
            self.nccl_calls.resume()
            self._monitor.resume()

    @property
    def engine(self) -> Engine:
        """The native engine."""
        return self._engine

    # -- ending -----------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """Whether the world is closed or being closed, so that its operations fail."""
        return self._is_ending

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
    def _closing(self, device_s: float) -> Iterator[None]:
        """End all threads of the world.

        Args:
            device_s: Seconds for the calls that NCCL has received.
        """
        self._is_ending = True
        self._monitor.close()
        self.nccl_calls.close(device_s)
        if self.member_feed is not None:
            self.member_feed.stop()
        yield
        self._completions.close()
        if self.member_feed is not None:
            self.member_feed.join()
        self.nccl_calls.release()
        release_ended()
        self._end()

    def retire(self) -> None:
        """Say goodbye to the peers and end the engine, but stay in the job."""
        if not self._closed and os.getpid() == self.pid:
            with self._closing(_CLOSE_TIMEOUT_S):
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
        with self._closing(_CLOSE_TIMEOUT_S if orderly else 0.0):
            self._engine.close(_CLOSE_TIMEOUT_S if orderly else last_words_s)
            if late := self._engine.take_late_failure():
                _log.warning("rank %d ends, but %s", self.rank, late.text)
            if orderly:
                self.rendezvous.goodbye()
