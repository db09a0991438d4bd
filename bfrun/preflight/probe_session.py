"""The driver's side of a conversation with ``responder.py`` on one host."""

from __future__ import annotations

import json
import math
import secrets
import select
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.archive import chosen, receiving_program, source_archive
from bfrun.launch.base import Launcher

# Seconds in which a probe must exit after it has closed its output.
_END_S = 5.0
# If the driver is lost, the probe ends this long after the limit of an answer.
_SPARE_S = 60

_MAIN = """\
from bfrun.preflight.responder import main
main()
"""

FILES = (
    "probe.py",
    "preflight/__init__.py",
    "preflight/gpus.py",
    "preflight/reach.py",
    "preflight/responder.py",
)


def interpreters(python: str | None) -> Sequence[str]:
    """Return the interpreters to try on a host, given ``--python``."""
    return [python] if python is not None else [sys.executable, "python3"]


class ProbeSession:
    """One running probe. Owns its connection. Use it from one thread at a time."""

    def __init__(
        self, launcher: Launcher, host: Host, python: str | None, timeout_s: float
    ) -> None:
        """Start the probe on ``host``.

        Args:
            launcher: Starts programs on the host.
            host: The host.
            python: Interpreter that the user named, if any.
            timeout_s: Seconds to connect.

        Raises:
            LaunchError: The host cannot be reached. Names reason and remedy.
        """
        self._host = host
        self._mark = f"--bfrun-probe-{secrets.token_hex(8)}--"
        self._received = b""
        source = source_archive(FILES)
        program = receiving_program("bfrun's pre-flight", _MAIN, len(source))
        argv = chosen(interpreters(python), program)
        self._connection = launcher.start(host, argv, timeout_s)
        self._unsent = source

    def ask(self, what: str, timeout_s: float, **question: Any) -> Mapping[str, Any]:
        """Send one question and return the answer.

        Raises:
            LaunchError: No answer came within ``timeout_s``, or the probe ended.
        """
        deadline = time.monotonic() + timeout_s
        # It waits for the next question as long as other hosts may take to answer this.
        lifetime_s = math.ceil(timeout_s) + _SPARE_S
        request = {"do": what, "mark": self._mark, "lifetime_s": lifetime_s, **question}
        self._unsent += json.dumps(request).encode() + b"\n"
        while (answer := self._answer()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise LaunchError(
                    f"host '{self._host.name}': no answer to the pre-flight's question "
                    f"'{what}' within {timeout_s:g} s; check that the host is not "
                    "overloaded, or raise --start-timeout"
                )
            self._move(left)
        return answer

    def close(self) -> None:
        """End the probe and release the connection."""
        try:
            self.ask("end", 2.0)
            self._connection.wait(2.0)
        except (LaunchError, ConnectionError):
            pass  # it has ended, or ends when the connection closes
        finally:
            self._connection.close()

    def abort(self) -> None:
        """Drop the probe at once. Safe to call while another thread asks."""
        self._connection.close()

    def _move(self, timeout_s: float) -> None:
        """Send and receive what is possible now, or wait a little for input."""
        try:
            taken = self._connection.send(self._unsent) if self._unsent else 0
        except ConnectionError:
            taken = 0
        self._unsent = self._unsent[taken:]
        # No descriptor reports when the connection takes more, so try it often.
        wait_s = 0.01 if self._unsent else timeout_s
        try:
            # select() cannot handle descriptors above 1023.
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            poll.poll(min(wait_s, timeout_s) * 1000)
            data = self._connection.receive(65536)
        except (OSError, ValueError):
            data = b""  # another thread has aborted it
        if data == b"":
            self._connection.wait(_END_S)
            raise LaunchError(
                f"host '{self._host.name}': the pre-flight's program ended: "
                f"{self._connection.diagnosis() or 'no reason given'}; the host needs "
                "Python 3.8 or newer; name an interpreter with --python PATH"
            )
        self._received += data or b""

    def _answer(self) -> Mapping[str, Any] | None:
        """Return the next answer, skipping the output of banners and login scripts."""
        _, mark, after = self._received.partition(self._mark.encode())
        if not mark:
            return None
        line, newline, rest = after.partition(b"\n")
        if not newline:
            return None
        self._received = rest
        answer: Mapping[str, Any] = json.loads(line)
        return answer
