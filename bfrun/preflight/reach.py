"""Checks which addresses of a host the other hosts reach: listeners and a dialer.

Both ends prove that they know the key of this pre-flight:

    dialer -> listener   magic, a nonce; MAC of these
    listener -> dialer   another nonce; MAC of both nonces

Each MAC is an HMAC-SHA256 with the key, a label of its own and the listener's name,
which tells hosts apart that have the same private address. The listener sends nothing
to a stranger: it closes the connection at the first wrong byte, or after ``CALL_S``.

Runs on the hosts: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Union  # noqa: UP035

DIAL_S = 3.0
CALL_S = 3.0
# When more are connected at once, the oldest caller is dropped.
MAX_CALLERS = 128

_MAGIC = b"blueprb1"
_NONCE_NBYTES = 16
_HELLO_NBYTES = len(_MAGIC) + _NONCE_NBYTES + 32
_REPLY_NBYTES = _NONCE_NBYTES + 32


def _mac(key: bytes, label: str, name: str, data: bytes) -> bytes:
    text = f"{label} {name} ".encode()
    return hmac.new(key, text + data, hashlib.sha256).digest()


class ProbeListener:
    """Answers dialers that know the key, in a thread, until ``close``.

    Attributes:
        ports: For each address its port, or why it cannot be listened at.
    """

    def __init__(self, addresses: Sequence[str], name: str, key: bytes) -> None:
        self._name = name
        self._key = key
        self._selector = selectors.DefaultSelector()
        # The bytes received from each caller, and its deadline, in order of arrival.
        self._heard: Dict[socket.socket, bytes] = {}  # noqa: UP006
        self._deadlines: Dict[socket.socket, float] = {}  # noqa: UP006
        self.ports: Dict[str, Union[int, str]] = {}  # noqa: UP006, UP007
        for address in addresses:
            self._listen(address)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close all sockets. Does nothing the second time."""
        self._closing.set()
        self._thread.join(CALL_S)

    def _listen(self, address: str) -> None:
        is_6 = ipaddress.ip_address(address).version == 6
        family = socket.AF_INET6 if is_6 else socket.AF_INET
        try:
            server = socket.create_server((address, 0), family=family, backlog=128)
        except OSError as error:
            self.ports[address] = f"no listener there: {error.strerror}"
            return
        server.setblocking(False)
        self.ports[address] = server.getsockname()[1]
        self._selector.register(server, selectors.EVENT_READ, self._accept)

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(0.25):
                # An earlier event of this list may have dropped the caller.
                if key.fd in self._selector.get_map():
                    key.data(key.fileobj)
            now = time.monotonic()
            for caller in [each for each, at in self._deadlines.items() if at < now]:
                self._drop(caller)
        for registered in list(self._selector.get_map().values()):
            registered.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _accept(self, server: socket.socket) -> None:
        try:
            caller, _ = server.accept()
        except OSError:
            return
        if len(self._heard) >= MAX_CALLERS:
            self._drop(next(iter(self._heard)))
        caller.setblocking(False)
        self._heard[caller] = b""
        self._deadlines[caller] = time.monotonic() + CALL_S
        self._selector.register(caller, selectors.EVENT_READ, self._hear)

    def _hear(self, caller: socket.socket) -> None:
        try:
            data = caller.recv(_HELLO_NBYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        heard = self._heard[caller] + data
        self._heard[caller] = heard
        known = min(len(heard), len(_MAGIC))
        if data and heard[:known] == _MAGIC[:known] and len(heard) < _HELLO_NBYTES:
            return
        if len(heard) == _HELLO_NBYTES:
            self._answer(caller, heard[:-32], heard[-32:])
        self._drop(caller)

    def _answer(self, caller: socket.socket, hello: bytes, proof: bytes) -> None:
        if not hmac.compare_digest(proof, _mac(self._key, "hello", self._name, hello)):
            return
        nonce = os.urandom(_NONCE_NBYTES)
        reply = nonce + _mac(self._key, "reply", self._name, hello + nonce)
        with contextlib.suppress(OSError):
            caller.send(reply)

    def _drop(self, caller: socket.socket) -> None:
        del self._heard[caller], self._deadlines[caller]
        self._selector.unregister(caller)
        caller.close()


def dial(targets: Sequence[Sequence[Any]], key: bytes) -> Sequence[Union[str, None]]:  # noqa: UP007
    """Return, for each ``[address, port, name]``, why it was not reached, or None.

    Args:
        targets: Listeners. A text instead of a port says why there is none.
        key: The key of the pre-flight.
    """
    with ThreadPoolExecutor(max_workers=32) as pool:
        return list(pool.map(lambda target: _dial_one(key, *target), targets))


def _dial_one(key: bytes, address: str, port: int | str, name: str) -> str | None:
    if isinstance(port, str):
        return port
    hello = _MAGIC + os.urandom(_NONCE_NBYTES)
    try:
        with socket.create_connection((address, port), timeout=DIAL_S) as link:
            link.sendall(hello + _mac(key, "hello", name, hello))
            reply = link.makefile("rb").read(_REPLY_NBYTES)
    except ConnectionResetError:
        reply = b""
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    nonce, proof = reply[:_NONCE_NBYTES], reply[_NONCE_NBYTES:]
    if not hmac.compare_digest(proof, _mac(key, "reply", name, hello + nonce)):
        return "another machine answers there"
    return None
