"""What the plugin in this process has carried: by connection, by stream."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StreamCounters:
    """One TCP connection, from this end.

    Attributes:
        peer: Address of the other end.
        bytes_sent: Bytes that it took, heads included.
        bytes_received: Bytes that came, heads included.
        chunks_sent: Pieces of messages of more than 16 KiB that it took.
        chunks_received: Such pieces that came.
    """

    peer: str
    bytes_sent: int
    bytes_received: int
    chunks_sent: int
    chunks_received: int


@dataclass(frozen=True)
class ConnectionCounters:
    """What NCCL uses as one connection: it carries messages in one direction.

    Attributes:
        number: Which one it is in this process, in the order of their opening, from 1.
        direction: ``"send"`` or ``"recv"``.
        messages: Messages begun.
        nbytes: Bytes of their payloads, as far as they have moved.
        streams: Its TCP connections, those that are closed first.
    """

    number: int
    direction: str
    messages: int
    nbytes: int
    streams: tuple[StreamCounters, ...]


def read_counters(plugin: Path) -> list[ConnectionCounters]:
    """Return the counters of all connections that are open in this process.

    Raises:
        RuntimeError: The plugin could not tell.
    """
    read = ctypes.CDLL(str(plugin)).bluecomm_net_counters
    read.restype = ctypes.c_long
    read.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    capacity = 1 << 16
    while True:
        text = ctypes.create_string_buffer(capacity)
        length = read(text, capacity)
        if length < 0:
            raise RuntimeError("the plugin could not read its counters")
        if length < capacity:
            return parse_counters(text.value.decode())
        # More may have been opened meanwhile.
        capacity = 2 * length


def parse_counters(text: str) -> list[ConnectionCounters]:
    """Return what the plugin's JSON says."""
    return [
        ConnectionCounters(
            number=one["number"],
            direction=one["direction"],
            messages=one["messages"],
            nbytes=one["bytes"],
            streams=tuple(StreamCounters(**stream) for stream in one["streams"]),
        )
        for one in json.loads(text)
    ]


def format_metrics(connections: Sequence[ConnectionCounters]) -> str:
    """Return the counters in the text format of Prometheus, version 0.0.4."""
    lines = []
    for name in ("bytes_sent", "bytes_received", "chunks_sent", "chunks_received"):
        lines.append(f"# TYPE bluecomm_net_stream_{name}_total counter")
        for connection in connections:
            for index, stream in enumerate(connection.streams):
                labels = (
                    f'connection="{connection.number}",direction="{connection.direction}",'
                    f'stream="{index}",peer="{stream.peer}"'
                )
                value = getattr(stream, name)
                lines.append(f"bluecomm_net_stream_{name}_total{{{labels}}} {value}")
    for name, attribute in (("messages", "messages"), ("payload_bytes", "nbytes")):
        lines.append(f"# TYPE bluecomm_net_{name}_total counter")
        for connection in connections:
            labels = (
                f'connection="{connection.number}",direction="{connection.direction}"'
            )
            value = getattr(connection, attribute)
            lines.append(f"bluecomm_net_{name}_total{{{labels}}} {value}")
    return "\n".join([*lines, ""])
