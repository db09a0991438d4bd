"""Runs ipyparallel's controller, which connects notebooks and engines."""

from __future__ import annotations

import ipaddress
import json
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from bfrun.addresses import source_address
from bfrun.errors import LaunchError
from bfrun.notebook.profile import Profile
from bfrun.plan import HostPlan

_GUARD = (
    f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); "
    "from bfrun.notebook.controller_guard import main; main()"
)
_LOOK_S = 0.05
_END_S = 10.0
_LOOPBACK = "127.0.0.1"


class Controller:
    """One running controller. Owns its process and its files.

    Args:
        profile: Profile for its files.
        addresses: Addresses of this machine that engines connect to.
        limit_s: Seconds within which it must listen.

    Raises:
        LaunchError: It does not listen in time.
    """

    def __init__(
        self, profile: Profile, addresses: Collection[str], limit_s: float
    ) -> None:
        self._profile = profile
        profile.forget_connections()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _GUARD, *_command(profile, addresses)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._connection = self._await_files(limit_s)
        except BaseException:
            self.close()
            raise

    def connection_for(self, address: str) -> str:
        """Return the connection file of an engine that connects to ``address``."""
        interface = f"tcp://{address}"
        return json.dumps(
            {**self._connection, "interface": interface, "location": address}
        )

    def _await_files(self, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise LaunchError(
                    "the controller ended before it listened; its errors are above"
                )
            # The client's file is written first.
            connection = _read(self._profile.engine_file)
            if connection is not None:
                return connection
            time.sleep(_LOOK_S)
        raise LaunchError(
            f"the controller did not listen within {limit_s:g} s; --start-timeout sets "
            "the limit"
        )

    def close(self) -> None:
        """End the controller."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.send_signal(signal.SIGCONT)  # a stopped guard would stay
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.forget_connections()

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def own_address(host: HostPlan) -> str:
    """Return the address of this machine that engines on ``host`` connect to.

    Raises:
        LaunchError: There is no IPv4 route, which ipyparallel needs.
    """
    if not host.addresses:
        return _LOOPBACK
    for address in host.addresses:
        if ipaddress.ip_address(address).version == 4:
            own = source_address(address)
            if own is not None:
                return own
    raise LaunchError(
        f"host '{host.host.name}' has no IPv4 address among "
        f"{', '.join(host.addresses)}, but ipyparallel needs IPv4; choose another "
        "network with --network-interface"
    )


def _command(profile: Profile, addresses: Collection[str]) -> list[str]:
    # Engines and clients register at one port, which is bound either to one address of
    # this machine or to all of them.
    everywhere = len(set(addresses)) > 1
    engines = "0.0.0.0" if everywhere else next(iter(addresses), _LOOPBACK)
    clients = "0.0.0.0" if everywhere else _LOOPBACK
    return [
        *(sys.executable, "-m", "ipyparallel.controller"),
        f"--profile-dir={profile.folder}",
        f"--IPController.engine_ip={engines}",
        f"--IPController.client_ip={clients}",
        f"--IPController.monitor_ip={_LOOPBACK}",
        f"--IPController.location={_LOOPBACK}",
        "--IPController.enable_curve=True",
        # An engine is registered after its first heartbeat. Its agent watches whether
        # it is stopped, so the controller must not give it up.
        "--HeartMonitor.period=500",
        "--HeartMonitor.max_heartmonitor_misses=1000",
        "--log-level=ERROR",
    ]


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of the file, or None before it is complete."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
