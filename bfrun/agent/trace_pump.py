"""Sends the traces of ended ranks to the driver, one piece at a time.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import os
import zlib
from typing import Tuple  # noqa: UP035

from bfrun.agent.driver_connection import DriverConnection
from bfrun.errors import ProtocolError
from bfrun.frames.agent_to_driver import TracePiece
from bfrun.trace.spool import HEADER_NBYTES, parse_header, used_ranges

# Small enough that a slow link still carries heartbeats in time.
_PIECE_NBYTES = 512 << 10

_Piece = Tuple[int, str, int, int]  # noqa: UP006  (rank, path, start, length)


class TracePump:
    """Reads the trace files of ranks and sends them packed.

    Args:
        folder: Folder of the files, which are named ``trace-<rank>-<pid>``.
        connection: Connection to the driver. The pump reads only while it is idle.
    """

    def __init__(self, folder: str, connection: DriverConnection) -> None:
        self._folder = folder
        self._connection = connection
        self._pieces: collections.deque[_Piece] = collections.deque()

    @property
    def busy(self) -> bool:
        """Whether pieces are left to send."""
        return bool(self._pieces)

    @property
    def ready(self) -> bool:
        """Whether ``step`` would send something now."""
        return self.busy and self._connection.idle

    def add(self, rank: int) -> None:
        """Queue the traces of a rank whose processes have ended.

        Traces of an earlier process of the rank may still be queued. A file is removed
        once it has been sent.
        """
        queued = {path for _, path, _, _ in self._pieces}
        for name in sorted(os.listdir(self._folder)):
            path = os.path.join(self._folder, name)
            if name.startswith(f"trace-{rank}-") and path not in queued:
                self._add_file(rank, path)

    def _add_file(self, rank: int, path: str) -> None:
        try:
            with open(path, "rb") as file:
                header = parse_header(file.read(HEADER_NBYTES))
        except (OSError, ProtocolError):
            return  # the rank ended while it created the file
        for start, length in used_ranges(header):
            for at in range(start, start + length, _PIECE_NBYTES):
                nbytes = min(_PIECE_NBYTES, start + length - at)
                self._pieces.append((rank, path, at, nbytes))

    def step(self) -> None:
        """Send the next piece if the connection is idle."""
        if not self.ready:
            return
        rank, path, start, nbytes = self._pieces.popleft()
        data = b""
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(start)
            data = file.read(nbytes)
        if not self._pieces or self._pieces[0][1] != path:  # that was its last piece
            with contextlib.suppress(OSError):
                os.unlink(path)
        packed = base64.b64encode(zlib.compress(data, 1)).decode("ascii")
        name = os.path.basename(path)
        self._connection.send_bulk(TracePiece(rank=rank, file=name, data=packed))
