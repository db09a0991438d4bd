"""Training with a dynamic one-peer topology, weights set on the optimizer per step."""

import torch
import torch.nn.functional as F

import bluecomm.torch as bf  # was: import bluefog.torch as bf
from bluecomm import topology_util  # was: from bluefog.common import topology_util

bf.init()
torch.manual_seed(bf.rank())
model = torch.nn.Sequential(
    torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
base_dist_optimizer = bf.DistributedAdaptThenCombineOptimizer
optimizer = base_dist_optimizer(
    optimizer, model=model, communication_type=bf.CommunicationType.neighbor_allreduce
)
bf.broadcast_parameters(model.state_dict(), root_rank=0)
bf.broadcast_optimizer_state(optimizer, root_rank=0)

dynamic_neighbors = topology_util.GetDynamicOnePeerSendRecvRanks(
    bf.load_topology(), bf.rank()
)


def dynamic_topology_update(batch_idx):
    if batch_idx % 20 == 19:
        optimizer.communication_type = bf.CommunicationType.allreduce
        return
    optimizer.communication_type = bf.CommunicationType.neighbor_allreduce
    send_neighbors, recv_neighbors = next(dynamic_neighbors)
    optimizer.dst_weights = send_neighbors
    optimizer.src_weights = {r: 1 / (len(recv_neighbors) + 1) for r in recv_neighbors}
    optimizer.self_weight = 1 / (len(recv_neighbors) + 1)
    optimizer.enable_topo_check = False


target = torch.randn(10, 1, generator=torch.Generator().manual_seed(1))
first = None
for batch_idx in range(100):
    data = torch.randn(32, 10)
    dynamic_topology_update(batch_idx)
    optimizer.zero_grad()
    loss = F.mse_loss(model(data), data @ target)
    loss.backward()
    optimizer.step()
    if first is None:
        first = loss.item()

loss = bf.allreduce(torch.tensor(loss.item()), average=True, name="avg_loss")
print(f"first loss {first:.4f}, last average loss {loss.item():.4f}")
# All ranks averaged with each other in the last step.
weight = model.state_dict()["0.weight"]
assert loss < first / 4
assert torch.allclose(weight, bf.allreduce(weight), atol=1e-5)
