"""The counters that ``bluecomm.stats`` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bfrun.text_table import align
from bfrun.wording import format_ranks

if TYPE_CHECKING:
    from bluecomm._native import EngineCounters, PeerCounters
    from bluecomm.device.copy_counts import CopyCounts
    from bluecomm.device.work_counts import WorkCount
    from bluecomm.runtime.input_waits import InputWaits
    from bluecomm.runtime.nccl_calls import NcclCounts

__all__ = [
    "DeviceStats",
    "DeviceWorkStats",
    "EdgeStats",
    "InputStats",
    "NeighborStats",
    "OperationStats",
    "Stats",
    "StreamStats",
]


@dataclasses.dataclass(frozen=True)
class EdgeStats:
    """Counters of one kind of operation, or of window calls, with one neighbor.

    Window calls are counted on the rank that puts or gets values, not on the rank that
    owns the window.

    If an operation goes through NCCL, its messages are NCCL's sends and receives, as in
    neighbor_allreduce, alltoall and messages of ``torch.distributed``. Collectives of
    NCCL, such as that of an allreduce, count none, because NCCL chooses their routes.
    Messages of the host that such an operation needs count, too, such as numbers of
    rows.

    Attributes:
        messages_sent: Messages of successful operations to the neighbor.
        bytes_sent: Bytes of these messages.
        messages_received: Messages from the neighbor.
        bytes_received: Bytes of these messages.
        wait_s: Seconds in which an operation could not continue without the neighbor,
            whether computation hid them or not. An operation that waits for several
            neighbors counts the time only for the last of them.
        late_s: Part of ``wait_s`` in which the neighbor had not called the operation
            yet.
    """

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    wait_s: float = 0.0
    late_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class StreamStats:
    """Counters of one TCP connection of a link.

    Attributes:
        address: Address and port of the other rank.
        bytes_sent: Bytes written to the connection, including message headers.
        chunks_sent: Number of chunks of large messages that were sent.
        bytes_received: Bytes read from the connection.
        chunks_received: Number of chunks of large messages that were received.
    """

    address: str
    bytes_sent: int
    chunks_sent: int
    bytes_received: int
    chunks_received: int


@dataclasses.dataclass(frozen=True)
class NeighborStats:
    """Counters of the traffic with one other rank.

    Attributes:
        rank: The other rank.
        host: Host of the other rank.
        transport: Transport of the link, such as ``"shm"``: see ``BLUECOMM_TRANSPORT``.
        messages_sent: Messages sent over the link, including those of failed operations
            and of bluecomm itself. NCCL uses links of its own.
        bytes_sent: Bytes of these messages.
        messages_received: Messages received over the link.
        bytes_received: Bytes of these messages.
        wait_s: Seconds in which an operation could not continue without the other rank.
        late_s: Part of ``wait_s`` in which the other rank had not called the operation
            yet.
        operations: Counters by kind of operation, such as ``"neighbor_allreduce"`` or
            ``"win_put"``. ``"win_mutex"`` counts the waits for mutexes that the other
            rank held or owns.
        streams: Connections of a TCP link, in the order in which they were opened.
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
    """Counters of one kind of operation.

    Attributes:
        calls: Operations that have ended. One call of the program may take several:
            through NCCL an operation that first exchanges numbers of rows, an Adasum,
            or a hierarchical_neighbor_allreduce; on any device an accumulate to another
            machine if ``BLUECOMM_WINDOWS`` is nccl.
        failures: Operations that have failed.
        duration_s: Sum of the seconds from call to end.
        exposed_s: Seconds in which the program only waited for these operations.
    """

    calls: int
    failures: int
    duration_s: float
    exposed_s: float


@dataclasses.dataclass(frozen=True)
class InputStats:
    """Counters of the batches from ``bluecomm.data.DataLoader``.

    Attributes:
        batches: Batches that the program has taken.
        samples: Samples in them.
        wait_s: Seconds in which the program waited for them.
    """

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class DeviceWorkStats:
    """Counters of what CUDA devices executed for one kind of copies or calls of NCCL.

    The device's events measure the time. Work is counted when it is known to have
    ended, so the latest may be missing, and failed work always is.

    Attributes:
        count: Copies, or calls of NCCL, that have ended on the device.
        bytes: Bytes of their inputs.
        device_s: Seconds from begin to end on the device. In calls of NCCL this
            includes waits for other ranks.
    """

    count: int
    bytes: int
    device_s: float


@dataclasses.dataclass(frozen=True)
class DeviceStats:
    """Counters of the traffic of tensors on CUDA devices.

    Attributes:
        nccl_calls: Operations that this rank has passed to NCCL, including failed ones.
        nccl_bytes: Bytes of their inputs.
        communicators: Communicators of NCCL that exist now: one for each set of ranks
            that has called NCCL, until ``free``.
        copies_to_host: Copies of tensors from a device to the host.
        bytes_to_host: Bytes of these.
        copies_to_device: Copies from the host to a device.
        bytes_to_device: Bytes of these. A large result may be copied in several parts.
        overlapped_bytes_to_host: Bytes that were still being copied to the host when
            their operation started to work on those before them.
        overlapped_bytes_to_device: Bytes whose copy started while their operation ran.
        work: Counters of what devices have finished, with their time, for each kind by
            its name in timelines, such as ``"NCCL_ALLREDUCE"`` or ``"COPY_TO_HOST"``.
    """

    nccl_calls: int = 0
    nccl_bytes: int = 0
    communicators: int = 0
    copies_to_host: int = 0
    bytes_to_host: int = 0
    copies_to_device: int = 0
    bytes_to_device: int = 0
    overlapped_bytes_to_host: int = 0
    overlapped_bytes_to_device: int = 0
    work: Mapping[str, DeviceWorkStats] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counters of this rank since ``init`` or ``reset_stats``.

    Attributes:
        age_s: Seconds since counting began.
        exposed_s: Seconds of *exposed* communication, in which the program waited for
            an operation and computed nothing. Threads that wait at the same time are
            counted separately.
        neighbors: Counters for each other rank, in order.
        operations: Counters for each kind of operation.
        gone: Ranks that have failed or finished while this one goes on, in order; only
            in jobs of ``bfrun --on-failure continue``.
        replaced: How often this rank's own values took the weight of a lost rank.
        dropped: Window requests (puts, accumulates, gets, mutexes) to lost ranks that
            ended without effect.
        input: Batches from ``bluecomm.data.DataLoader``, and the waits for them. If
            ``input.wait_s`` is a large part of ``age_s``, the input is the bottleneck.
        generation: Number of the generation; 0 before newcomers have joined.
        devices: Calls of NCCL, and copies of tensors between CUDA devices and the host.
    """

    age_s: float
    exposed_s: float
    neighbors: tuple[NeighborStats, ...]
    operations: Mapping[str, OperationStats]
    gone: tuple[int, ...] = ()
    replaced: int = 0
    dropped: int = 0
    input: InputStats = InputStats()
    generation: int = 0
    devices: DeviceStats = DeviceStats()

    @property
    def epoch(self) -> int:
        """Number of the ranks that have gone since this generation began."""
        return len(self.gone)

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
        """The rank that this rank has waited for longest, or ``None`` without waits."""
        if not any(each.wait_s for each in self.neighbors):
            return None
        return max(self.neighbors, key=lambda each: each.wait_s).rank

    def __str__(self) -> str:
        """Return a table of the neighbors and one of the kinds of operations."""
        lines = [
            f"in {self.age_s:.3f} s: {_readable(self.bytes_sent)} sent, "
            f"{_readable(self.bytes_received)} received, "
            f"{self.exposed_s:.3f} s of exposed communication"
        ]
        if self.input.batches:
            part = 100 * self.input.wait_s / max(self.age_s, 1e-9)
            lines.append(
                f"{self.input.samples} samples in {self.input.batches} batches, "
                f"{self.input.wait_s:.3f} s ({part:.0f} %) of waiting for data"
            )
        if self.devices.nccl_calls or self.devices.copies_to_host:
            one = self.devices
            lines.append(
                f"GPU: {one.nccl_calls} calls of NCCL ({_readable(one.nccl_bytes)}), "
                f"{_readable(one.bytes_to_host)} copied to the host, "
                f"{_readable(one.bytes_to_device)} to the GPU"
            )
        if self.gone:
            gone = format_ranks(self.gone, noun=True)
            text = f"epoch {self.epoch}, without {gone}; "
            text += f"own values replaced {self.replaced}"
            if self.dropped:
                text += f", {self.dropped} window requests dropped"
            lines.append(text)
        if self.neighbors:
            rows = [_NEIGHBOR_HEADINGS, *map(_neighbor_row, self.neighbors)]
            lines += ["", *align(rows)]
        if self.operations:
            named = sorted(self.operations.items())
            rows = [_OPERATION_HEADINGS, *(_operation_row(*each) for each in named)]
            lines += ["", *align(rows, left=1)]
        if self.devices.work:
            done = sorted(self.devices.work.items())
            rows = [_WORK_HEADINGS, *(_work_row(*each) for each in done)]
            lines += ["", *align(rows, left=1)]
        return "\n".join(lines)


_NEIGHBOR_HEADINGS: tuple[str, ...] = (
    *("neighbor", "host", "transport", "sent", "received", "waited s", "late s"),
)
_OPERATION_HEADINGS: tuple[str, ...] = (
    *("operation", "calls", "failures", "duration s", "exposed s"),
)

_WORK_HEADINGS: tuple[str, ...] = ("on the GPU", "count", "bytes", "seconds")


def _neighbor_row(one: NeighborStats) -> tuple[str, ...]:
    return (
        str(one.rank),
        one.host,
        one.transport,
        _readable(one.bytes_sent),
        _readable(one.bytes_received),
        f"{one.wait_s:.3f}",
        f"{one.late_s:.3f}",
    )


def _operation_row(kind: str, one: OperationStats) -> tuple[str, ...]:
    return (
        kind,
        str(one.calls),
        str(one.failures),
        f"{one.duration_s:.3f}",
        f"{one.exposed_s:.3f}",
    )


def _work_row(kind: str, one: DeviceWorkStats) -> tuple[str, ...]:
    return kind, str(one.count), _readable(one.bytes), f"{one.device_s:.6f}"


def _readable(nbytes: int) -> str:
    """Return a number of bytes with a decimal prefix, such as ``1.50 MB``."""
    value, prefixes = float(nbytes), iter(("kB", "MB", "GB", "TB", "PB"))
    unit = "B"
    while value >= 1000 and (larger := next(prefixes, None)):
        value, unit = value / 1000, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.3g} {unit}"


def to_stats(
    counted: EngineCounters,
    hosts: Mapping[int, str],
    gone: tuple[int, ...],
    waits: InputWaits,
    generation: int,
    devices: DeviceStats,
) -> Stats:
    """Return the counters of all parts, with hosts and the ranks that left."""
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
        gone=gone,
        replaced=counted["replaced"],
        dropped=counted["dropped"],
        input=InputStats(waits.batches, waits.samples, waits.wait_s),
        generation=generation,
        devices=devices,
    )


def to_device_stats(
    nccl: NcclCounts,
    copies: CopyCounts,
    work: Mapping[str, WorkCount],
    overlapped: int,
) -> DeviceStats:
    """Return the counters of NCCL, of copies, and of what devices did.

    Args:
        nccl: Counters of NCCL.
        copies: Counters of copies.
        work: Counters of what devices did.
        overlapped: Bytes that were still being copied to the host when their operation
            started.
    """
    return DeviceStats(
        nccl_calls=nccl.calls,
        nccl_bytes=nccl.nbytes,
        communicators=nccl.communicators,
        copies_to_host=copies.to_host,
        bytes_to_host=copies.to_host_nbytes,
        copies_to_device=copies.to_device,
        bytes_to_device=copies.to_device_nbytes,
        overlapped_bytes_to_host=overlapped,
        overlapped_bytes_to_device=copies.overlapped_nbytes,
        work={kind: DeviceWorkStats(*one) for kind, one in work.items()},
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
