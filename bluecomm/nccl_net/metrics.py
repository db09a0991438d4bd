"""A server on the loopback address from which Prometheus reads the counters."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

# A request that takes longer than this, or is longer, is dropped.
_REQUEST_S = 1.0
_MAX_REQUEST = 8192


class MetricsServer:
    """Answers ``GET /metrics``, one request at a time, until it is closed.

    Args:
        read: Returns the text of the answer. Called in the server's thread.
        port: Port to listen on, on 127.0.0.1, or 0 for a free one.

    Attributes:
        port: The port that the server listens on.

    Raises:
        OSError: The port is in use.
    """

    def __init__(self, read: Callable[[], str], port: int = 0) -> None:
        self._read = read
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self._closing = False
        self._thread = threading.Thread(
            target=self._serve, name="bluecomm-net-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and wait until the current request is answered.

        Further calls do nothing.
        """
        if self._closing:
            return
        self._closing = True
        # Unlike close(), shutdown() wakes accept().
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> MetricsServer:
        """Return the server itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the server."""
        self.close()

    def _serve(self) -> None:
        while not self._closing:
            try:
                client, _ = self._socket.accept()
            except OSError:
                # The server is closing, or the process has no free descriptor.
                time.sleep(0 if self._closing else 0.1)
                continue
            with client:
                try:
                    client.sendall(self._answer(_request(client)))
                except OSError:
                    continue  # the client has disconnected, or is too slow

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b" ", 2)
        status, text = "200 OK", ""
        if words[:2] != [b"GET", b"/metrics"]:
            status = "404 Not Found"
        else:
            try:
                text = self._read()
            except (OSError, RuntimeError) as error:
                status, text = "503 Service Unavailable", f"{error}\n"
        body = text.encode()
        head = (
            f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _request(client: socket.socket) -> bytes:
    """Receive a request up to its empty line.

    Raises:
        OSError: The request was not complete in time, or is too long.
    """
    deadline = time.monotonic() + _REQUEST_S
    data = b""
    while b"\r\n\r\n" not in data:
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > _MAX_REQUEST:
            raise TimeoutError("no complete request in time")
        client.settimeout(left)
        more = client.recv(4096)
        if not more:
            raise ConnectionError("the client sent no complete request")
        data += more
    # The same limit applies to sending the answer.
    client.settimeout(_REQUEST_S)
    return data
