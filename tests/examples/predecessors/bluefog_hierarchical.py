"""Hierarchical averaging over machines (run with --ranks-per-machine 2)."""

import torch

import bluecomm as bf  # was: import bluefog.torch as bf
from bluecomm import topology_util  # was: from bluefog.common import topology_util

bf.init()
assert bf.is_homogeneous()
bf.set_machine_topology(topology_util.ExponentialTwoGraph(bf.machine_size()))

x = torch.full((100,), float(bf.rank()))
x = bf.hierarchical_neighbor_allreduce(x, name="static")
assert torch.allclose(x, torch.full((100,), (bf.size() - 1) / 2))

machines = topology_util.GetExp2DynamicSendRecvMachineRanks(
    world_size=bf.size(),
    local_size=bf.local_size(),
    self_rank=bf.rank(),
    local_rank=bf.local_rank(),
)
model = torch.nn.Linear(4, 1)
bf.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = bf.DistributedAdaptWithCombineOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    model=model,
    communication_type=bf.CommunicationType.hierarchical_neighbor_allreduce,
)
for step in range(50):
    send_machines, recv_machines = next(machines)
    weight = 1 / (len(recv_machines) + 1)
    optimizer.dst_machine_weights = send_machines
    optimizer.src_machine_weights = dict.fromkeys(recv_machines, weight)
    optimizer.self_weight = weight
    optimizer.zero_grad()
    data = torch.randn(8, 4)
    ((model(data) - data.sum(1, keepdim=True)) ** 2).mean().backward()
    optimizer.step()

error = (model.weight - 1).abs().max()
print(f"largest error of a weight: {error:.4f}")
assert error < 0.1
