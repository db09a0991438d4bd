"""Carries the call of ``bfrun.run`` to the ranks, and their results back.

The driver sends the pickled call to each agent, which keeps it. A rank fetches it over
the agent's socket and sends its result the same way, without files or ports. ``main``
is the program that the ranks run.
"""

from __future__ import annotations

import base64
import os
import pickle
import socket
import sys
from collections.abc import Iterator
from typing import Any

from bfrun.channel import MessageParser, encode
from bfrun.errors import ProtocolError
from bfrun.frames.agent_to_rank import AGENT_TO_RANK, Refused, TaskHeader, TaskPart
from bfrun.frames.frame import decode
from bfrun.frames.rank_to_agent import FetchTask
from bfrun.frames.rank_to_driver import Result

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

    def frames(self) -> Iterator[TaskPart]:
        """Yield the frames that carry the call to an agent."""
        for part in _parts(self.payload):
            yield TaskPart(data=part)

    def take(self, rank: int, frame: Result) -> None:
        """Take a part of the result of a rank.

        Raises:
            ProtocolError: The part is not base64.
        """
        try:
            part = base64.b64decode(frame.data, validate=True)
        except ValueError as error:
            raise ProtocolError(
                f"rank {rank} sent an invalid 'result': {error}"
            ) from None
        self._parts.setdefault(rank, []).append(part)
        if frame.last:
            self._complete.add(rank)

    def forget(self, rank: int) -> None:
        """Drop what a rank has sent, because it is started again."""
        self._parts.pop(rank, None)
        self._complete.discard(rank)

    def result(self, rank: int) -> bytes | None:
        """Return the pickled result of a rank, or None if it sent none."""
        return b"".join(self._parts[rank]) if rank in self._complete else None


def _parts(data: bytes) -> Iterator[str]:
    """Cut ``data`` into base64 texts that fit into frames, at least one."""
    for start in range(0, max(1, len(data)), _PART_NBYTES):
        yield base64.b64encode(data[start : start + _PART_NBYTES]).decode("ascii")


def main() -> None:
    """Fetch the call, make it, and send its result. Runs in the ranks."""
    rank = int(os.environ["BLUECOMM_RANK"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.connect(os.environ["BLUECOMM_AGENT_SOCKET"])
        agent.sendall(encode(FetchTask(rank=rank).to_message()))
        path, call = pickle.loads(_fetch(agent))
        sys.path += [entry for entry in path if entry not in sys.path]
        function, args, kwargs = pickle.loads(call)
        result = function(*args, **kwargs)
        parts = list(_parts(_dumps(result, rank)))
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            agent.sendall(encode(Result(data=part, last=last).to_message()))


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
    """Return the pickled call from the agent."""
    parser = MessageParser()
    expected: int | None = None
    parts: list[bytes] = []
    while expected is None or len(parts) < expected:
        data = agent.recv(1 << 20)
        if not data:
            raise ConnectionError(
                "bfrun.run: the agent hung up before it sent the function; the job ends"
            )
        for message in parser.feed(data):
            frame = decode(message, "the agent of this machine", AGENT_TO_RANK)
            if isinstance(frame, TaskHeader):
                expected = frame.parts
            elif isinstance(frame, TaskPart):
                parts.append(base64.b64decode(frame.data))
            elif isinstance(frame, Refused):
                raise ConnectionError(f"bfrun.run: the agent refused: {frame.error}")
    return b"".join(parts)
