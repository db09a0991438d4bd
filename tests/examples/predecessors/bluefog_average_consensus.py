"""Average consensus as BlueFog's users write it."""

import torch

import bluecomm as bf  # was: import bluefog.torch as bf
from bluecomm import topology_util  # was: from bluefog.common import topology_util

bf.init()
torch.random.manual_seed(2020 + bf.rank())
x = torch.randn(1000, dtype=torch.double)

x_bar = bf.allreduce(x, average=True)
bf.set_topology(topology_util.MeshGrid2DGraph(bf.size()), is_weighted=True)
mse = [torch.norm(x - x_bar, p=2) / torch.norm(x_bar, p=2)]
for i in range(100):
    x = bf.neighbor_allreduce(x, name="x")
    mse.append(torch.norm(x - x_bar, p=2) / torch.norm(x_bar, p=2))

handle = bf.neighbor_allreduce_nonblocking(x, name="last")
x = bf.synchronize(handle)
print(f"MSE at last iteration: {mse[-1]}")
assert mse[-1] < 1e-10
assert bf.in_neighbor_ranks() == bf.out_neighbor_ranks()
