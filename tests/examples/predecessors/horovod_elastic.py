"""Elastic training as Horovod's users write it, after Horovod's example for MNIST."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed
from sklearn.datasets import load_digits

import bluecomm.torch as hvd  # was: import horovod.torch as hvd

batch_size, epochs, lr, log_interval = 32, 4, 0.05, 10

hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
dataset = torch.utils.data.TensorDataset(images, torch.tensor(digits.target))
train_dataset, test_dataset = torch.utils.data.random_split(dataset, [1440, 357])
train_sampler = torch.utils.data.distributed.DistributedSampler(
    train_dataset, num_replicas=hvd.size(), rank=hvd.rank()
)
train_loader = torch.utils.data.DataLoader(
    train_dataset, batch_size=batch_size, sampler=train_sampler
)
test_sampler = torch.utils.data.distributed.DistributedSampler(
    test_dataset, num_replicas=hvd.size(), rank=hvd.rank()
)
test_loader = torch.utils.data.DataLoader(
    test_dataset, batch_size=100, sampler=test_sampler
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, kernel_size=3)
        self.fc1 = nn.Linear(576, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(self.conv(x)).flatten(1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


model = Net()
optimizer = optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.5)


def metric_average(val, name):
    return hvd.allreduce(torch.tensor(val), name=name).item()


@hvd.elastic.run
def train(state):
    # post synchronization event (worker added, worker removed) init ...
    for state.epoch in range(state.epoch, epochs + 1):
        state.model.train()
        train_sampler.set_epoch(state.epoch)
        steps_remaining = len(train_loader) - state.batch
        for state.batch, (data, target) in enumerate(train_loader):
            if state.batch >= steps_remaining:
                break
            state.optimizer.zero_grad()
            loss = F.nll_loss(state.model(data), target)
            loss.backward()
            state.optimizer.step()
            if state.batch % log_interval == 0:
                print(f"Train Epoch: {state.epoch}\tLoss: {loss.item():.6f}")
            state.commit()
        state.batch = 0


def test():
    model.eval()
    correct = 0
    for data, target in test_loader:
        correct += model(data).argmax(1).eq(target).sum().item()
    accuracy = metric_average(correct / len(test_sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"\nTest set: Accuracy: {100.0 * accuracy:.2f}%\n")
    return accuracy


optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.none,
)


# adjust learning rate on reset
def on_state_reset():
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, epoch=1, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
assert state.epoch == epochs
assert test() > 0.8
