"""Fails in several ways in one launch, each time in a world of its own.

mpi4py has started MPI, so MPI stays usable after a failed ``init``. There are three
ranks, and rank 1 is to blame. Each rank prints the error that it got in each case, as
one line.
"""

from mpi4py import MPI  # isort: skip (it starts MPI, before bluecomm)

import contextlib
import os
import sys
from collections.abc import Iterator

import torch

import bluecomm as bf
from bluecomm import _version

world = MPI.COMM_WORLD
to_blame = world.rank == 1


@contextlib.contextmanager
def telling(case: str) -> Iterator[None]:
    try:
        yield
    except bf.BluecommError as error:
        text = f"{case} on {world.rank}: {type(error).__name__}: {error}"
        sys.stdout.write(text.replace("\n", " ") + "\n")
        sys.stdout.flush()


own_version = _version.__version__
if to_blame:
    _version.__version__ = "9.9.9"
with telling("version"):
    bf.init(comm=world.Dup())
_version.__version__ = own_version

os.environ["BLUECOMM_START_TIMEOUT_S"] = "10"
silent = world.Dup()
if not to_blame:
    with telling("silent"):
        bf.init(comm=silent)
del os.environ["BLUECOMM_START_TIMEOUT_S"]

bf.init(comm=world.Dup())
if to_blame:
    raise KeyError("mine")
with telling("never"):
    bf.allreduce(torch.ones(100_000), name="never")
sys.exit(1)
