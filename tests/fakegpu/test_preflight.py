"""What ``bfrun --check`` finds out about the fake's devices."""

import sys

from bfrun.preflight.gpus import gpu_facts
from tests.support.fakegpu.library import FOLDER, build


def test_names_driver_and_nccl_are_found():
    build()
    environment = {
        "LD_LIBRARY_PATH": str(FOLDER),
        "FAKEGPU_DEVICES": "2",
        "FAKEGPU_DRIVER_VERSION": "12040",
        "FAKEGPU_NCCL_VERSION": "22105",
    }
    assert gpu_facts({"python": sys.executable, "environment": environment}) == {
        "driver": "12.4",
        "names": ["Fake GPU 0", "Fake GPU 1"],
        "nccl": "2.21.5",
        "problem": None,
    }
