"""Settings of all tests."""

import os
import signal

# Before the tests import torch.
import tests.support.startup.sitecustomize  # noqa: F401
from tests.support.python_path import python_path

# A process that a shell starts in the background ignores SIGINT, and one that nohup
# starts ignores SIGHUP; so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

given = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = python_path(*([given] if given else []))


def pytest_addoption(parser):
    parser.addoption(
        "--over-fakegpu",
        choices=("nccl", "staged"),
        help="run the ranks of tests/mp on fake GPUs (docs/fake-gpu.md)",
    )
    parser.addoption(
        "--fakegpu-seed", type=int, default=0, help="with --over-fakegpu: its seed"
    )
