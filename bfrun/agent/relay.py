"""Connects standard input and output to the socket of an agent on the same machine.

A driver that takes over an agent of another host runs this program there over SSH. It
also tells the driver whether the agent and its guard have ended, which no broken
connection proves. Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time

from bfrun.agent.kernel import machine_id
from bfrun.agent.procs import read_stat

# Exit status if no process of the agent is left on its machine.
GONE = 78
_UNKNOWN = 1
# Seconds for the connection, and then for the end of an agent that has hung up. Its
# guard needs at most 5.3 s to kill the rest.
_CONNECT_S = 5.0
_END_S = 10.0
_LOOK_S = 0.05
_READ_NBYTES = 64 << 10


def main(marker: str, path: str, machine: str, *pids: str) -> None:
    """Relay until one side hangs up, and exit. Does not return.

    Args:
        marker: Written before the agent's first byte, so that the driver can skip the
            output of a login shell.
        path: Path of the agent's socket.
        machine: ``machine_id()`` where the agent runs.
        *pids: Process ids of the agent and its guard there.
    """
    sys.exit(_run(marker.encode("ascii"), path, machine, [int(pid) for pid in pids]))


def _run(marker: bytes, path: str, machine: str, pids: list[int]) -> int:
    if machine != machine_id():
        print(
            f"{socket.gethostname()} is another machine than the one on which the "
            "agent was started, or has been started again since",
            file=sys.stderr,
        )
        return _UNKNOWN
    driver_has_left = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(_CONNECT_S)
        try:
            agent.connect(path)
        except OSError as error:
            print(f"its socket cannot be reached: {error}", file=sys.stderr)
            to_agent = _from_driver(None, driver_has_left)
        else:
            agent.settimeout(None)
            to_agent = _from_driver(agent, driver_has_left)
        with contextlib.suppress(OSError):
            _write(marker)
        to_agent.start()
        with contextlib.suppress(OSError):
            while data := _receive(agent):
                _write(data)
    _close_output()
    until = time.monotonic() + _END_S
    while not driver_has_left.is_set():
        if machine and not any(_is_of_agent(pid) for pid in pids):
            return GONE
        if time.monotonic() >= until:
            break
        driver_has_left.wait(_LOOK_S)
    return _UNKNOWN


def _receive(agent: socket.socket) -> bytes:
    try:
        return agent.recv(_READ_NBYTES)
    except OSError:  # it was never connected
        return b""


def _from_driver(
    agent: socket.socket | None, has_left: threading.Event
) -> threading.Thread:
    """Return a thread that passes standard input on, and notes its end.

    It ends with the process, because only the driver can end its wait for input.
    """

    def work() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(0, _READ_NBYTES):
                if agent is not None:
                    with contextlib.suppress(OSError):
                        agent.sendall(data)
        has_left.set()
        if agent is not None:
            with contextlib.suppress(OSError):
                agent.shutdown(socket.SHUT_RDWR)

    return threading.Thread(target=work, daemon=True)


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def _close_output() -> None:
    """Let the driver see the end of the connection before this process ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _is_of_agent(pid: int) -> bool:
    """Return whether ``pid`` is a guard or agent that runs, not a later process."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            name = file.read().strip()
    except OSError:
        return False
    stat = read_stat(pid)
    return name.startswith("bfrun-") and stat is not None and stat.state not in "ZX"
