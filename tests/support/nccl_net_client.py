"""A process that calls the network plugin as NCCL does.

The test plays NCCL's bootstrap: it sends each client its commands, one line of JSON at
a time, and carries handles between them. The calls are those of version 8 of the
interface, made through ctypes; torch is not needed.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.deadlines import DEADLINE_S

PLUGIN = Path(__file__).parents[2] / "bluecomm" / "nccl_net" / "libnccl-net-bluecomm.so"
REMOTE_ERROR = 6
_HANDLE_NBYTES = 128
_NAMES = (
    *("name", "init", "devices", "properties", "listen", "connect", "accept"),
    *("reg_mr", "reg_mr_dma_buf", "dereg_mr", "isend", "irecv", "iflush", "test"),
    *("close_send", "close_recv", "close_listen"),
)


class PluginClient:
    """A client process, which ends with the ``with`` block.

    Args:
        namespace: Network namespace in which it runs. Default: this process's.
        variables: Environment variables in addition to this process's.
    """

    def __init__(
        self, namespace: str | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        self._process = subprocess.Popen(
            [*inside, sys.executable, "-m", "tests.support.nccl_net_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(variables or {})},
            text=True,
        )

    def __enter__(self) -> PluginClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, what: str, *arguments: Any) -> None:
        """Send a command; receive() returns its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Return the result of the oldest command without one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the client has ended with {self._process.wait(DEADLINE_S)}"
        return json.loads(line)

    def call(self, what: str, *arguments: Any) -> Any:
        """Send a command and return its result."""
        self.send(what, *arguments)
        return self.receive()


def both(clients: Sequence[PluginClient], what: str, *arguments: Any) -> list[Any]:
    """Send a command to all clients and return their results."""
    for client in clients:
        client.send(what, *arguments)
    return [client.receive() for client in clients]


def join(clients: Sequence[PluginClient], device: int = 0) -> None:
    """Connect two clients in both directions."""
    handles = [client.call("listen", device) for client in clients]
    for client, handle in zip(clients, reversed(handles), strict=True):
        client.send("open", device, handle)
    assert [client.receive() for client in clients] == [0, 0]


class _Plugin:
    """The commands of a client."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(PLUGIN))
        table = (ctypes.c_void_p * len(_NAMES)).in_dll(
            self._library, "ncclNetPlugin_v8"
        )
        self._table = dict(zip(_NAMES, table, strict=True))
        self._listen = ctypes.c_void_p()
        self._send = ctypes.c_void_p()
        self._recv = ctypes.c_void_p()
        self._posted: list[tuple[ctypes.c_void_p, Any]] = []
        self._call("init", None)

    def devices(self) -> list[str]:
        count = ctypes.c_int()
        self._call("devices", ctypes.byref(count))
        names = []
        for number in range(count.value):
            properties = (
                ctypes.c_char_p * 8
            )()  # the first member is the name, 64 bytes
            self._call("properties", ctypes.c_int(number), properties)
            name = properties[0]
            assert name is not None
            names.append(name.decode())
        return names

    def listen(self, device: int) -> str:
        handle = ctypes.create_string_buffer(_HANDLE_NBYTES)
        self._call("listen", ctypes.c_int(device), handle, ctypes.byref(self._listen))
        return handle.raw.hex()

    def open(self, device: int, theirs: str) -> int:
        """Call connect and accept in turn, as NCCL does; then close the listen comm."""
        handle = ctypes.create_string_buffer(bytes.fromhex(theirs), _HANDLE_NBYTES)
        spare = ctypes.c_void_p()

        def turn() -> bool:
            if not self._send:
                out = ctypes.byref(self._send), ctypes.byref(spare)
                self._call("connect", ctypes.c_int(device), handle, *out)
            if not self._recv:
                out = ctypes.byref(self._recv), ctypes.byref(spare)
                self._call("accept", self._listen, *out)
            return bool(self._send and self._recv)

        _spin(turn, "connect and accept")
        return self._call("close_listen", self._listen)

    def accept_repeatedly(self, turns: int) -> bool:
        """Call accept() ``times`` times; return whether it gave a comm."""
        spare = ctypes.c_void_p()
        for _ in range(turns):
            self._call(
                "accept", self._listen, ctypes.byref(self._recv), ctypes.byref(spare)
            )
            time.sleep(0.001)
        return bool(self._recv)

    def traffic(self, count: int, nbytes: int) -> int:
        """Send and receive messages, 8 in flight; return the number of wrong ones."""
        data = [random.Random(seed).randbytes(nbytes) for seed in range(8)]
        sends: list[Any] = []
        receives: list[Any] = []
        sent = received = wrong = 0

        def turn() -> bool:
            nonlocal sent, received, wrong
            if sent < count and len(sends) < 8:
                sent += self._post(sends, "isend", data[sent % 8])
            if received + len(receives) < count and len(receives) < 8:
                self._post(receives, "irecv", bytes(nbytes))
            if sends and self._is_done(sends[0][0]):
                sends.pop(0)
            if receives and self._is_done(receives[0][0]):
                wrong += receives.pop(0)[1].raw != data[received % 8]
                received += 1
            return sent == count and received == count and not sends

        _spin(turn, "messages")
        return wrong

    def post(self) -> int:
        """Post a send and a receive that the peer never matches."""
        self._post(self._posted, "isend", bytes(1 << 20))
        self._post(self._posted, "irecv", bytes(1 << 20))
        return len(self._posted)

    def finish(self) -> list[int]:
        """Test both until each has ended; return their results."""
        results = []
        for request, _ in self._posted:
            found = [0]

            def turn(request: ctypes.c_void_p = request, found: Any = found) -> bool:
                done = ctypes.c_int()
                found[0] = self._raw("test", request, ctypes.byref(done), None)
                return bool(found[0] or done.value)

            _spin(turn, "result")
            results.append(found[0])
        return results

    def counters(self) -> Any:
        text = ctypes.create_string_buffer(1 << 20)
        counters = self._library.bluecomm_net_counters
        counters.restype = ctypes.c_long
        counters(text, ctypes.c_size_t(len(text)))
        return json.loads(text.value)

    def limit_descriptors(self, more: int | None) -> int:
        """Allow ``more`` descriptors beyond the open ones; None lifts the limit."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if more is None:
            limit = most
        else:
            next_one = os.dup(0)
            os.close(next_one)
            limit = next_one + more
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        return limit

    def close(self) -> int:
        self._call("close_send", self._send)
        return self._call("close_recv", self._recv)

    def _post(self, requests: list[Any], how: str, data: bytes) -> bool:
        memory = ctypes.create_string_buffer(data, len(data))
        request = ctypes.c_void_p()
        if how == "isend":
            nbytes, tag = ctypes.c_int(len(data)), ctypes.c_int(0)
            out = ctypes.byref(request)
            self._call("isend", self._send, memory, nbytes, tag, None, out)
        else:
            array = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
            nbytes, tag = (ctypes.c_int * 1)(len(data)), (ctypes.c_int * 1)(0)
            handles = (ctypes.c_void_p * 1)()
            one, out = ctypes.c_int(1), ctypes.byref(request)
            self._call("irecv", self._recv, one, array, nbytes, tag, handles, out)
        if request:
            requests.append((request, memory))
        return bool(request)

    def _is_done(self, request: ctypes.c_void_p) -> bool:
        done = ctypes.c_int()
        self._call("test", request, ctypes.byref(done), None)
        return bool(done.value)

    def _raw(self, name: str, *arguments: Any) -> int:
        function = ctypes.CFUNCTYPE(ctypes.c_int)(self._table[name] or 0)
        return function(*arguments)

    def _call(self, name: str, *arguments: Any) -> int:
        result = self._raw(name, *arguments)
        if result != 0:
            raise RuntimeError(f"{name} returned {result}")
        return result


def _spin(turn: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not turn():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {DEADLINE_S:g} s")


def main() -> None:
    """Run the commands on standard input until it ends."""
    plugin = _Plugin()
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(plugin, what)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
