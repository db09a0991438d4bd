"""The former name of ``bluecomm.nccl_net``, for scripts that use it."""

import sys

from bluecomm.nccl_net import (
    ConnectionCounters,
    MetricsServer,
    StreamCounters,
    counters,
    enable,
    environment,
    plugin_path,
    serve_metrics,
)
from bluecomm.nccl_net.__main__ import main

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

if __name__ == "__main__":
    sys.exit(main())
