"""The network plugin for NCCL: its path, its counters, and how to enable it.

``python -m bluecomm.nccl_net -- CMD`` runs a program with the plugin, without any
change of code. docs/nccl-plugin.md describes the plugin and its settings.
"""

from __future__ import annotations

import os
from pathlib import Path

from bluecomm.nccl_net.counters import (
    ConnectionCounters,
    StreamCounters,
    format_metrics,
    read_counters,
)
from bluecomm.nccl_net.metrics import MetricsServer

__all__ = [
    "ConnectionCounters",
    "MetricsServer",
    "StreamCounters",
    "counters",
    "enable",
    "environment",
    "plugin_path",
    "serve_metrics",
]

_MAX_PATH = 254  # NCCL's limit for the path of a plugin


def plugin_path() -> Path:
    """Return the path of the library that NCCL loads.

    Raises:
        FileNotFoundError: The library does not exist, because bluecomm was not built.
    """
    path = Path(__file__).resolve().parent / "libnccl-net-bluecomm.so"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; build bluecomm again (pip install, or make build)"
        )
    return path


def environment() -> dict[str, str]:
    """Return the environment variables that make NCCL 2.21.5 or newer use the plugin.

    With ``NCCL_NET`` set, NCCL fails if it cannot load the plugin, rather than go on
    without it. With ``NCCL_NET_PLUGIN_REF_COUNT``, which keeps its value if the process
    has set it, NCCL 2.27.3 to 2.29.7 do not forget the plugin when the last
    communicator ends.

    Raises:
        FileNotFoundError: The plugin does not exist.
        RuntimeError: NCCL does not accept the plugin's path.
    """
    path = str(plugin_path())
    if "," in path or len(os.fsencode(path)) > _MAX_PATH:
        raise RuntimeError(
            "NCCL accepts no path that contains a comma or is longer than "
            f"{_MAX_PATH} bytes: {path}; install bluecomm in another folder"
        )
    return {
        "NCCL_NET_PLUGIN": path,
        "NCCL_NET": "BlueComm",
        "NCCL_NET_PLUGIN_REF_COUNT": os.environ.get("NCCL_NET_PLUGIN_REF_COUNT", "1"),
    }


def enable() -> None:
    """Make NCCL use the plugin in this process and in the processes that it starts.

    Call it before the first communicator is created: NCCL reads the variables once, so
    a later call has no effect. Replaces existing values of ``NCCL_NET_PLUGIN`` and
    ``NCCL_NET``.

    Raises:
        FileNotFoundError: The plugin does not exist.
        RuntimeError: NCCL does not accept the plugin's path.
    """
    os.environ.update(environment())


def counters() -> list[ConnectionCounters]:
    """Return the traffic of each connection and stream of this process so far.

    Raises:
        FileNotFoundError: The plugin does not exist.
        RuntimeError: The plugin could not read its counters.
    """
    return read_counters(plugin_path())


def serve_metrics(port: int = 0) -> MetricsServer:
    """Serve the counters to Prometheus at ``http://127.0.0.1:port/metrics``.

    Args:
        port: Port to listen on. Each process of a machine needs its own, such as 9400
            plus the local rank. With 0, the server chooses a free port and stores it in
            its attribute ``port``.

    Returns:
        The server. Close it, or use it in a ``with`` statement.

    Raises:
        OSError: The port is in use.
    """
    return MetricsServer(lambda: format_metrics(counters()), port)
