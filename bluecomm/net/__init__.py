"""The network plugin for NCCL: where it is, and how a program comes to use it.

``python -m bluecomm.net -- CMD`` runs a program on it, without any change of code;
docs/nccl-plugin.md says what it does and how it is set.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["enable", "environment", "plugin_path"]


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
    """
    return {"NCCL_NET_PLUGIN": str(plugin_path()), "NCCL_NET": "BlueComm"}


def enable() -> None:
    """Make NCCL use the plugin in this process and in those that it starts.

    To be called before the first communicator is made; NCCL looks once.

    Raises:
        FileNotFoundError: The plugin is not there.
    """
    os.environ.update(environment())
