"""What ``bluecomm.stats`` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bluecomm._native import EngineCounters, PeerCounters

__all__ = ["EdgeStats", "NeighborStats", "OperationStats", "Stats", "StreamStats"]


@dataclasses.dataclass(frozen=True)
class EdgeStats:
    """What the operations of one kind, or calls about windows, did with one neighbor.

    Of windows: values that this rank has put there, or got from there. What the
    neighbor puts here is counted at the neighbor.

    Attributes:
        messages_sent: Messages to the neighbor, of operations that succeeded.
        bytes_sent: Their bytes.
        messages_received: Messages from the neighbor.
        bytes_received: Their bytes.
        wait_s: Seconds in which an operation could not go on without the neighbor,
            whether computation hid them or not. Every moment of waiting is counted for
            one neighbor only: the last of those that were waited for.
        late_s: The part of it in which the neighbor had not called the operation yet.
    """

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    wait_s: float = 0.0
    late_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class StreamStats:
    """What went over one TCP connection of a link.

    Attributes:
        address: The other rank's address and port.
        bytes_sent: Bytes written to it, heads of messages included.
        chunks_sent: Pieces of large messages among them.
        bytes_received: Bytes read from it.
        chunks_received: Pieces of large messages among them.
    """

    address: str
    bytes_sent: int
    chunks_sent: int
    bytes_received: int
    chunks_received: int


@dataclasses.dataclass(frozen=True)
class NeighborStats:
    """What this rank exchanged with one other rank.

    Attributes:
        rank: The other rank.
        host: Its host.
        transport: Kind of the link: ``"shm"`` or ``"tcp"``.
        messages_sent: Messages that the link took, those of failed operations and of
            the library itself included.
        bytes_sent: Their bytes.
        messages_received: Messages that came over the link.
        bytes_received: Their bytes.
        wait_s: Seconds in which an operation could not go on without this rank.
        late_s: The part of it in which this rank had not called the operation yet.
        operations: The same by kind of operation, such as ``"neighbor_allreduce"`` or
            ``"win_put"``; in ``"win_mutex"`` are the waits for mutexes that the
            neighbor held, or kept for this rank.
        streams: The connections of a TCP link, in the order of their opening.
    """

    rank: int
    host: str
    transport: str
    messages_sent: int
    bytes_sent: int
    messages_received: int
    bytes_received: int
    wait_s: float
    late_s: float
    operations: Mapping[str, EdgeStats]
    streams: tuple[StreamStats, ...] = ()


@dataclasses.dataclass(frozen=True)
class OperationStats:
    """What became of the operations of one kind.

    Attributes:
        calls: Operations that have ended.
        failures: Those of them that failed.
        duration_s: Seconds from call to end, added up.
        exposed_s: Seconds in which the program did nothing but wait for their end.
    """

    calls: int
    failures: int
    duration_s: float
    exposed_s: float


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counters of this rank since ``init`` or ``reset_stats``.

    Attributes:
        age_s: Seconds for which has been counted.
        exposed_s: Seconds of *exposed* communication, in which the program waited for
            an operation and computed nothing. Threads that wait at the same time each
            count.
        neighbors: One for each other rank, in order.
        operations: By kind of operation.
    """

    age_s: float
    exposed_s: float
    neighbors: tuple[NeighborStats, ...]
    operations: Mapping[str, OperationStats]

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to all neighbors."""
        return sum(each.bytes_sent for each in self.neighbors)

    @property
    def bytes_received(self) -> int:
        """Bytes received from all neighbors."""
        return sum(each.bytes_received for each in self.neighbors)

    @property
    def slowest_neighbor(self) -> int | None:
        """The rank that this one has waited for longest; ``None``: for nobody."""
        if not any(each.wait_s for each in self.neighbors):
            return None
        return max(self.neighbors, key=lambda each: each.wait_s).rank


def to_stats(counted: EngineCounters, hosts: Mapping[int, str]) -> Stats:
    """Return what the engine has counted, with the host of each rank."""
    operations = {
        kind: OperationStats(
            calls=one["calls"],
            failures=one["failures"],
            duration_s=one["duration_s"],
            exposed_s=one["blocked_s"],
        )
        for kind, one in counted["operations"].items()
    }
    return Stats(
        age_s=counted["age_s"],
        exposed_s=sum(one.exposed_s for one in operations.values()),
        neighbors=tuple(
            _to_neighbor(peer, hosts[peer["rank"]]) for peer in counted["peers"]
        ),
        operations=operations,
    )


def _to_neighbor(peer: PeerCounters, host: str) -> NeighborStats:
    operations = {kind: EdgeStats(**edge) for kind, edge in peer["operations"].items()}
    return NeighborStats(
        rank=peer["rank"],
        host=host,
        transport=peer["transport"],
        messages_sent=peer["messages_sent"],
        bytes_sent=peer["bytes_sent"],
        messages_received=peer["messages_received"],
        bytes_received=peer["bytes_received"],
        wait_s=sum(edge.wait_s for edge in operations.values()),
        late_s=sum(edge.late_s for edge in operations.values()),
        operations=operations,
        streams=tuple(StreamStats(**stream) for stream in peer["streams"]),
    )
