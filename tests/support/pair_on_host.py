"""The program of ``tests.gpu.pair`` on the CPU, over gloo in place of NCCL.

It claims in NCCL's log that the network carried everything that its variables choose.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from unittest import mock

import torch

from tests.gpu import program

# Elements of 8 bytes to 64 KiB have room; see ``program.operations``.
_FREE_NBYTES = 12 * (64 << 10)
_RESULTS = {
    "cuda.set_device": None,
    "cuda.synchronize": None,
    "cuda.mem_get_info": (_FREE_NBYTES, _FREE_NBYTES),
    "cuda.get_device_name": "the CPU",
    "cuda.nccl.version": (0, 0, 0),
}


def main() -> None:
    """Run the part that the command line names."""
    network = "BlueComm" if "NCCL_NET_PLUGIN" in os.environ else "Socket"
    Path(os.environ["NCCL_DEBUG_FILE"]).write_text(f"Channel 00 via NET/{network}/0\n")
    interfaces = os.environ["NCCL_SOCKET_IFNAME"].lstrip("=")
    os.environ["GLOO_SOCKET_IFNAME"] = interfaces.partition(",")[0]
    with contextlib.ExitStack() as patches:
        for name, result in _RESULTS.items():
            # The stand-ins know the signatures, so a wrong call is a TypeError.
            patch = mock.patch(f"torch.{name}", autospec=True, return_value=result)
            patches.enter_context(patch)
        patches.enter_context(
            mock.patch.multiple(
                program,
                DEVICE=torch.device("cpu"),
                BACKEND="gloo",
                SPEED_SIZES=[8, 1 << 10],
                SPEED_S=0.0,
            )
        )
        program.main()


if __name__ == "__main__":
    main()
