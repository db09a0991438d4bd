"""Sends the output of the ranks from their pipes to the driver.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterable

from bfrun.agent.driver_connection import DriverConnection
from bfrun.agent.output_ring import OutputRing
from bfrun.agent.rank_process import RankProcess, Stream
from bfrun.channel import bytes_to_text
from bfrun.frames.agent_to_driver import Output, OutputClosed, OutputLost


class OutputPump:
    """Reads the output of ranks while their windows have room.

    Sends ``output`` frames, and ``closed`` once a rank has ended and all of its output
    has been sent. If the agent may outlive its driver, a ring of each rank keeps the
    output that no driver has shown.
    """

    def __init__(
        self, selector: selectors.BaseSelector, connection: DriverConnection
    ) -> None:
        self._selector = selector
        self._connection = connection
        self._keeps = False
        self._rings: dict[int, OutputRing] = {}

    @property
    def has_kept(self) -> bool:
        """Whether a ring has output that no driver has been sent."""
        return any(self._rings.values())

    def keep(self) -> None:
        """Keep output that no driver has shown. Call it before the ranks start."""
        self._keeps = True

    def detach(self, ranks: Iterable[RankProcess]) -> None:
        """Go on without a driver: read all output, and keep it."""
        for rank in ranks:
            self._ring(rank).rewind()
            rank.unacked = 0
            self.watch(rank)

    def attach(self, ranks: Iterable[RankProcess]) -> None:
        """Send what has been kept to a new driver, then go on as before."""
        for rank in ranks:
            lost_nbytes = self._ring(rank).take_lost()
            if lost_nbytes:
                self._connection.send_bulk(
                    OutputLost(rank=rank.rank, nbytes=lost_nbytes)
                )
            self._send_kept(rank)
            self.check_closed(rank)

    def may_read(self, rank: RankProcess) -> bool:
        """Return whether a driver, or the ring, takes more output of the rank."""
        return rank.may_read and not (
            self._connection.is_attached and self._rings.get(rank.rank)
        )

    def _ring(self, rank: RankProcess) -> OutputRing:
        return self._rings.setdefault(rank.rank, OutputRing())

    def _send_kept(self, rank: RankProcess) -> None:
        """Send output from the ring while the window has room."""
        ring = self._ring(rank)
        while rank.may_read and (piece := ring.take()):
            stream, data = piece
            rank.unacked += len(data)
            self._send(rank, stream, data)
        if self.may_read(rank):
            self.watch(rank)
        else:
            self._pause(rank)

    def _pause(self, rank: RankProcess) -> None:
        for fd in rank.streams.values():
            self._unwatch(fd)

    def _send(self, rank: RankProcess, stream: Stream, data: bytes) -> None:
        self._connection.send_bulk(
            Output(
                rank=rank.rank,
                stream=stream,
                data=bytes_to_text(data),
                nbytes=len(data),
            )
        )

    def watch(self, rank: RankProcess) -> None:
        """Read the rank's output as soon as there is some."""
        for stream, fd in rank.streams.items():
            if fd not in self._selector.get_map():
                self._register(rank, stream, fd)

    def _register(self, rank: RankProcess, stream: Stream, fd: int) -> None:
        self._selector.register(
            fd, selectors.EVENT_READ, lambda mask: self._read(rank, stream)
        )

    def acknowledge(self, rank: RankProcess, nbytes: int) -> None:
        """Note that the driver has shown ``nbytes`` of the rank's output."""
        # The output may be that of an earlier process of the rank.
        rank.unacked = max(0, rank.unacked - nbytes)
        if self._keeps:
            self._ring(rank).acknowledge(nbytes)
            had_kept = bool(self._ring(rank))
            self._send_kept(rank)
            if had_kept:
                self.check_closed(rank)
        elif rank.may_read:
            self.watch(rank)

    def _read(self, rank: RankProcess, stream: Stream) -> bool:
        """Send one piece of output, and return whether there may be more."""
        if stream not in rank.streams:
            return False
        data = rank.read(stream)
        if data == b"":
            self._close(rank, stream)
        elif data:
            self._take(rank, stream, data)
        if not self.may_read(rank):
            self._pause(rank)
        return bool(data) and self.may_read(rank)

    def _take(self, rank: RankProcess, stream: Stream, data: bytes) -> None:
        """Send new output, or keep it until that is possible."""
        if not self._keeps:
            self._send(rank, stream, data)
        elif self._connection.is_attached and not self._ring(rank):
            self._ring(rank).sent(stream, data)
            self._send(rank, stream, data)
        else:
            rank.unacked -= len(data)  # it is not on its way yet
            self._ring(rank).keep(stream, data)

    def finish(self, rank: RankProcess) -> None:
        """Send the rest of an ended rank's output, even if children hold its pipes."""
        for stream in tuple(rank.streams):
            while self._read(rank, stream):
                pass
            if stream in rank.streams and self.may_read(rank):
                self._close(rank, stream)

    def drop(self, rank: RankProcess) -> None:
        """Drop the rest of an ended rank's output."""
        if self._rings.get(rank.rank):
            self._ring(rank).clear()
            self.check_closed(rank)
        for stream in tuple(rank.streams):
            self._close(rank, stream)

    def check_closed(self, rank: RankProcess) -> None:
        """Tell the driver if the rank has ended and all of its output has been sent."""
        is_sent = not rank.streams and not self._rings.get(rank.rank)
        if rank.status is not None and is_sent:
            self._connection.send_bulk(OutputClosed(rank=rank.rank))

    def _close(self, rank: RankProcess, stream: Stream) -> None:
        self._unwatch(rank.streams[stream])
        rank.close_stream(stream)
        self.check_closed(rank)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
