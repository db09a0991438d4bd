"""An endpoint on the loopback at which Prometheus reads the plugin's counters."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

# A request that is not there by then is dropped, and so is one that is longer.
_REQUEST_S = 1.0
_MAX_REQUEST = 8192


class MetricsServer:
    """Answers ``GET /metrics`` until it is closed; one request at a time.

    Args:
        read: Returns the text of the answer; called in the server's thread.
        port: Where it listens, on 127.0.0.1; 0: a free port.

    Attributes:
        port: Where it listens.

    Raises:
        OSError: The port is taken.
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
        """Stop listening, and wait for the request that is being answered.

        Once more does nothing.
        """
        if self._closing:
            return
        self._closing = True
        # Wakes accept(), which closing the socket would not.
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
        """Close it."""
        self.close()

    def _serve(self) -> None:
        while not self._closing:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                # Closing; or no descriptors, which others may free.
                time.sleep(0 if self._closing else 0.1)
                continue
            with caller:
                try:
                    caller.sendall(self._answer(_request(caller)))
                except OSError:
                    continue  # it has gone, or was too slow

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


def _request(caller: socket.socket) -> bytes:
    """Return what comes up to the empty line.

    Raises:
        OSError: It did not come in time, or is too long.
    """
    deadline = time.monotonic() + _REQUEST_S
    data = b""
    while b"\r\n\r\n" not in data:
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > _MAX_REQUEST:
            raise TimeoutError("no request")
        caller.settimeout(left)
        more = caller.recv(4096)
        if not more:
            raise ConnectionError("no request")
        data += more
    # The answer, too, has its limit.
    caller.settimeout(_REQUEST_S)
    return data
