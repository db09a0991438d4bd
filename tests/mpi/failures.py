"""One launch in which one thing after the other goes wrong, each in its own world.

mpi4py has started MPI, so a failed ``init`` leaves it usable. Of three ranks the one in
the middle is to blame. Each rank prints what it was told, as a line for each case.
"""

from mpi4py import MPI  # isort: skip (it starts MPI, before bluecomm)

import os

import torch

import bluecomm as bf
from bluecomm import _version

world = MPI.COMM_WORLD
to_blame = world.rank == 1


def told(case: str, comm: MPI.Comm) -> None:
    try:
        bf.init(comm=comm)
    except bf.BluecommError as error:
        text = f"{case} on {world.rank}: {type(error).__name__}: {error}"
        print(text.replace("\n", " "), flush=True)


own_version = _version.__version__
if to_blame:
    _version.__version__ = "9.9.9"
told("version", world.Dup())
_version.__version__ = own_version

os.environ["BLUECOMM_START_TIMEOUT_S"] = "1"
silent = world.Dup()
if not to_blame:
    told("silent", silent)
del os.environ["BLUECOMM_START_TIMEOUT_S"]

bf.init(comm=world.Dup())
if to_blame:
    raise KeyError("mine")
bf.allreduce(torch.ones(100_000), name="never")
