"""A function instead of a program: how it reaches the ranks, and its results come back.

The pickled call travels over the control plane and is kept by each agent; a rank
fetches it over the agent's socket and sends its result the same way, so no file and
no port is involved. ``main`` is the program that ranks run.
"""

from __future__ import annotations

import base64
import os
import pickle
import socket
import sys
from collections.abc import Iterator
from typing import Any

from bfrun.channel import Frame, FrameParser, encode

_PART_NBYTES = 4 << 20


class Task:
    """The driver's side of one call on all ranks.

    Attributes:
        payload: The pickled call.
    """

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._parts: dict[int, list[bytes]] = {}
        self._complete: set[int] = set()

    def frames(self) -> Iterator[Frame]:
        """Return the frames that bring the call to an agent."""
        for part in _parts(self.payload):
            yield {"type": "task_part", "data": part}

    def take(self, rank: int, frame: Frame) -> None:
        """Take a ``result`` frame of a rank."""
        part = base64.b64decode(frame["data"], validate=True)
        self._parts.setdefault(rank, []).append(part)
        if frame["last"]:
            self._complete.add(rank)

    def result(self, rank: int) -> bytes | None:
        """Return the pickled result of a rank, None if it sent none."""
        return b"".join(self._parts[rank]) if rank in self._complete else None


def _parts(data: bytes) -> Iterator[str]:
    """Cut ``data`` into texts that fit into frames; one at least."""
    for start in range(0, max(1, len(data)), _PART_NBYTES):
        yield base64.b64encode(data[start : start + _PART_NBYTES]).decode("ascii")


def main() -> None:
    """Fetch the call, make it, send its result. Runs in the ranks."""
    rank = int(os.environ["BLUECOMM_RANK"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.connect(os.environ["BLUECOMM_AGENT_SOCKET"])
        agent.sendall(encode({"type": "fetch_task", "rank": rank}))
        path, call = pickle.loads(_fetch(agent))
        sys.path += [entry for entry in path if entry not in sys.path]
        function, args, kwargs = pickle.loads(call)
        result = function(*args, **kwargs)
        parts = list(_parts(_dumps(result, rank)))
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            agent.sendall(encode({"type": "result", "data": part, "last": last}))


def _dumps(result: Any, rank: int) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        return bytes(cloudpickle.dumps(result))
    except Exception as error:
        raise TypeError(
            f"bfrun.run: the result of rank {rank}, of type {type(result).__name__}, "
            f"cannot be pickled ({error}); return plain values, arrays or tensors"
        ) from error


def _fetch(agent: socket.socket) -> bytes:
    """Return the payload that the agent keeps."""
    parser = FrameParser()
    expected: int | None = None
    parts: list[bytes] = []
    while expected is None or len(parts) < expected:
        data = agent.recv(1 << 20)
        if not data:
            raise ConnectionError("bfrun.run: the agent hung up before the call came")
        for frame in parser.feed(data):
            if frame["type"] == "task":
                expected = int(frame["parts"])
            elif frame["type"] == "task_part":
                parts.append(base64.b64decode(frame["data"]))
            else:
                raise ConnectionError(f"bfrun.run: the agent refused: {frame}")
    return b"".join(parts)
