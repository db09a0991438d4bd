"""The traffic of the plugin in this process, by connection and by stream."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StreamCounters:
    """Counters of one TCP connection.

    Attributes:
        peer: Address of the peer.
        bytes_sent: Bytes sent, frame heads included.
        bytes_received: Bytes received, frame heads included.
        chunks_sent: Chunks of long messages sent.
        chunks_received: Chunks of long messages received.
    """

    peer: str
    bytes_sent: int
    bytes_received: int
    chunks_sent: int
    chunks_received: int


@dataclass(frozen=True)
class ConnectionCounters:
    """Counters of one connection of NCCL, which carries messages in one direction.

    Attributes:
        number: Number of the connection in this process, in order of opening, from 1.
        direction: ``"send"`` or ``"recv"``.
        messages: Messages begun.
        nbytes: Payload bytes moved.
        streams: Its TCP connections; closed ones come first.
    """

    number: int
    direction: str
    messages: int
    nbytes: int
    streams: tuple[StreamCounters, ...]


def read_counters(plugin: Path) -> list[ConnectionCounters]:
    """Return the counters of all open connections of this process.

    Raises:
        RuntimeError: The plugin could not read its counters.
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
        # Leaves room for connections that were opened in the meantime.
        capacity = 2 * length


def parse_counters(text: str) -> list[ConnectionCounters]:
    """Parse the JSON of the plugin."""
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
