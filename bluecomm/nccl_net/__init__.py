"""The network plugin for NCCL: where it is, and how a program comes to use it.

``python -m bluecomm.nccl_net -- CMD`` runs a program on it, without any change of code;
docs/nccl-plugin.md says what it does and how it is set.
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

_MAX_PATH = 254  # of a plugin, in NCCL


def plugin_path() -> Path:
    """Return the file that NCCL loads.

    Raises:
        FileNotFoundError: It is not there; bluecomm was not built.
    """
    path = Path(__file__).resolve().parent / "libnccl-net-bluecomm.so"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there; build bluecomm again (pip install, or make build)"
        )
    return path


def environment() -> dict[str, str]:
    """Return the variables by which NCCL 2.21.5 or newer takes the plugin.

    ``NCCL_NET`` names it, so that NCCL fails where it would go on without the plugin.

    Raises:
        FileNotFoundError: The plugin is not there.
        RuntimeError: NCCL cannot be told where it is.
    """
    path = str(plugin_path())
    if "," in path or len(os.fsencode(path)) > _MAX_PATH:
        raise RuntimeError(
            f"NCCL takes no path with a comma, or of more than {_MAX_PATH} bytes: "
            f"{path}; install bluecomm in another folder"
        )
    return {"NCCL_NET_PLUGIN": path, "NCCL_NET": "BlueComm"}


def enable() -> None:
    """Make NCCL use the plugin in this process and in those that it starts.

    To be called before the first communicator is made: NCCL looks once, and a later
    call changes nothing. Values that the variables have are replaced.

    Raises:
        FileNotFoundError: The plugin is not there.
        RuntimeError: NCCL cannot be told where it is.
    """
    os.environ.update(environment())


def counters() -> list[ConnectionCounters]:
    """Return what the plugin in this process has carried so far, by stream.

    Raises:
        FileNotFoundError: The plugin is not there.
        RuntimeError: The plugin could not tell.
    """
    return read_counters(plugin_path())


def serve_metrics(port: int = 0) -> MetricsServer:
    """Let Prometheus read the counters of this process at http://127.0.0.1:port/metrics.

    Args:
        port: Each process of a machine has its own, such as 9400 and the local rank.
            0: a free one, which the server's ``port`` tells.

    Returns:
        The server, whose owner closes it; also as the context of a ``with``.

    Raises:
        OSError: The port is taken.
    """
    return MetricsServer(lambda: format_metrics(counters()), port)
