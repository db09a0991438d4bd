"""The wheel and the source distribution contain more than Python modules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.deadlines import DEADLINE_S

pytestmark = pytest.mark.mp

ROOT = Path(__file__).parents[2]

# Inspects the unpacked wheel as an installed program would. NCCL opens the plugin like
# ctypes and looks for these names.
LOOK = """
import ctypes, json, sys
sys.path.insert(0, sys.argv[1])
import bluecomm._native
import bluecomm.bench._raw_memory
from bluecomm import nccl_net
import bfrun.nccl_net
from bfrun.config import LaunchConfig
library = ctypes.CDLL(str(nccl_net.plugin_path()))
names = [f"ncclNetPlugin_v{n}" for n in range(5, 14)]
given = LaunchConfig(command=("x",), enable_net=True)
config = bfrun.nccl_net.with_nccl_net(given, {})
print(json.dumps({
    "plugin": str(nccl_net.plugin_path()),
    "extensions": [
        bluecomm._native.__file__, bluecomm.bench._raw_memory.__file__,
    ],
    "names": [name for name in names if hasattr(library, name)],
    "bfrun": dict(config.environment)["NCCL_NET_PLUGIN"],
}))
"""

# Prints what torch has loaded of bluecomm, and uses its backend without an import.
GROUP = """
import json, sys
import torch
import torch.distributed as dist
ours = [name for name in sys.modules if name.startswith(("bluecomm", "bfrun"))]
dist.init_process_group("bluecomm", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(1)
dist.all_reduce(x)
dist.destroy_process_group()
print(json.dumps({"ours": ours, "sum": x.item()}))
"""


def setup_py(*words: str) -> None:
    """Run setup.py, which compiles only changed files."""
    command = [sys.executable, "setup.py", "-q", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=5 * DEADLINE_S
    )
    assert done.returncode == 0, done.stderr


def test_an_installed_wheel_finds_its_plugin(tmp_path):
    build = ["build", "--build-lib", str(tmp_path / "lib")]
    wheel = ["bdist_wheel", "--bdist-dir", str(tmp_path / "files")]
    setup_py(*build, *wheel, "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("bluecomm-*.whl")
    site = tmp_path / "site"
    shutil.unpack_archive(archive, site, "zip")
    environ = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(site)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plugin = str(site / "bluecomm" / "nccl_net" / "libnccl-net-bluecomm.so")
    assert found["plugin"] == found["bfrun"] == plugin
    assert found["names"] == [f"ncclNetPlugin_v{number}" for number in range(6, 13)]
    assert all(file.startswith(str(site)) for file in found["extensions"])
    done = subprocess.run(
        [sys.executable, "-c", GROUP],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"ours": ["bluecomm_autoload"], "sum": 1.0}


def test_a_source_distribution_can_be_built(tmp_path):
    setup_py("sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("bluecomm-*.tar.gz")
    with tarfile.open(archive) as tar:
        there = {name.partition("/")[2] for name in tar.getnames()}
    needed = {
        str(path.relative_to(ROOT))
        for suffix in ("*.cpp", "*.h", "*.map")
        for path in (ROOT / "native").rglob(suffix)
        if path.relative_to(ROOT / "native").parts[0] not in ("tests", "fuzz")
    }
    assert needed - there == set()
    assert {"setup.py", "setup.cfg", "pyproject.toml", "README.md"} <= there
