"""What ``bfrun --check`` finds out about the fake's devices."""

import sys

from bfrun.preflight.gpus import gpu_facts
from tests.support.fakegpu.library import FOLDER, build


def test_names_driver_nccl_and_links_are_found():
    build()
    environment = {
        "LD_LIBRARY_PATH": str(FOLDER),
        "FAKEGPU_DEVICES": "3",
        "FAKEGPU_DRIVER_VERSION": "12040",
        "FAKEGPU_NCCL_VERSION": "22105",
    }
    assert gpu_facts({"python": sys.executable, "environment": environment}) == {
        "driver": "12.4",
        "names": ["Fake GPU 0", "Fake GPU 1", "Fake GPU 2"],
        "nccl": "2.21.5",
        "problem": None,
        "links": [
            [0, 1, "NVLink"],
            [0, 2, "NODE, peer access"],
            [1, 2, "NODE, peer access"],
        ],
    }


def test_the_driver_alone_tells_of_peer_access(tmp_path):
    build()
    (tmp_path / "libcuda.so.1").symlink_to(FOLDER / "libcuda.so.1")
    (tmp_path / "libnvidia-ml.so.1").touch()  # hides one of the system
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "FAKEGPU_DEVICES": "2"}
    facts = gpu_facts({"python": sys.executable, "environment": environment})
    assert facts["problem"] is None
    assert facts["links"] == [[0, 1, "peer access"]]
