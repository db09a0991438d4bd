"""Training with compression and broadcast as Horovod's users write it."""

import torch
import torch.nn.functional as F

import bluecomm.compat.horovod as hvd  # was: import horovod.torch as hvd

hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

compression = hvd.Compression.fp16
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    op=hvd.Average,
)

generator = torch.Generator().manual_seed(hvd.rank())
first = None
for batch_idx in range(100):
    data = torch.randn(32, 10, generator=generator)
    optimizer.zero_grad()
    loss = F.mse_loss(model(data), data.sum(1, keepdim=True))
    loss.backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    if first is None:
        first = loss.item()

average = hvd.allreduce(torch.tensor(loss.item()), name="avg_loss").item()
handle = hvd.allreduce_async(torch.ones(2) * hvd.rank(), op=hvd.Sum)
assert hvd.synchronize(handle).tolist() == [sum(range(hvd.size()))] * 2
print(f"first loss {first:.4f}, last average loss {average:.4f}")
assert average < first / 4
weight = model[0].weight.detach()
assert torch.equal(weight, hvd.broadcast(weight, root_rank=0))
