"""Sends the output of the ranks from their pipes to the driver.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import selectors

from bfrun.agent.driver_connection import DriverConnection
from bfrun.agent.rank_process import RankProcess, Stream
from bfrun.channel import bytes_to_text
from bfrun.frames.agent_to_driver import Output, OutputClosed


class OutputPump:
    """Reads the output of ranks while their windows have room.

    Sends ``output`` frames, and ``closed`` once a rank has ended and all of its output
    has been sent.
    """

    def __init__(
        self, selector: selectors.BaseSelector, connection: DriverConnection
    ) -> None:
        self._selector = selector
        self._connection = connection

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
        if rank.may_read:
            self.watch(rank)

    def _read(self, rank: RankProcess, stream: Stream) -> bool:
        """Send one piece of output, and return whether there may be more."""
        if stream not in rank.streams:
            return False
        data = rank.read(stream)
        if data == b"":
            self._close(rank, stream)
        elif data:
            self._connection.send_bulk(
                Output(
                    rank=rank.rank,
                    stream=stream,
                    data=bytes_to_text(data),
                    nbytes=len(data),
                )
            )
        if not rank.may_read:
            for fd in rank.streams.values():
                self._unwatch(fd)
        return bool(data) and rank.may_read

    def finish(self, rank: RankProcess) -> None:
        """Send the rest of an ended rank's output, even if children hold its pipes."""
        for stream in tuple(rank.streams):
            while self._read(rank, stream):
                pass
            if stream in rank.streams and rank.may_read:
                self._close(rank, stream)

    def drop(self, rank: RankProcess) -> None:
        """Drop the rest of an ended rank's output."""
        for stream in tuple(rank.streams):
            self._close(rank, stream)

    def check_closed(self, rank: RankProcess) -> None:
        """Tell the driver if the rank has ended and all of its output has been sent."""
        if rank.status is not None and not rank.streams:
            self._connection.send_bulk(OutputClosed(rank=rank.rank))

    def _close(self, rank: RankProcess, stream: Stream) -> None:
        self._unwatch(rank.streams[stream])
        rank.close_stream(stream)
        self.check_closed(rank)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
