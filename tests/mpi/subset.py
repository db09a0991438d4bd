"""Two worlds beside each other, of communicators that the program made with mpi4py.

One rank is in neither. Prints ``ok`` on each rank.
"""

from mpi4py import MPI  # isort: skip (it starts MPI, before bluecomm)

import pytest
import torch

import bluecomm as bf
from tests.mp.test_allreduce import other_collectives

world = MPI.COMM_WORLD
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
color = MPI.UNDEFINED if world.rank == world.size - 1 else world.rank % 2
# In descending order: rank 0 of each is the last one of the world.
part = world.Split(color, key=-world.rank)
if part != MPI.COMM_NULL:
    bf.init(comm=part)
    assert (bf.rank(), bf.size()) == (part.rank, part.size)
    other_collectives()
    total = bf.allreduce(torch.tensor([float(world.rank)]), op=bf.Sum)
    assert total.item() == part.allreduce(world.rank)
    bf.shutdown()
    bf.init()
    assert bf.size() == part.size
    assert bf.allreduce(torch.ones(100_000), op=bf.Sum)[-1] == part.size
else:
    with pytest.raises(ValueError, match="MPI_COMM_NULL"):
        bf.init(comm=part)
assert world.allreduce(1) == world.size
print("ok", flush=True)
