"""A program for mypy only: type checkers must see every kind of public name.

`make check` includes this file. An unneeded `type: ignore` is an error there, too, so
the last line says that a name which does not exist is still reported.
"""

import torch

import bluecomm as bf
import bluecomm.compat.horovod as hvd
import bluecomm.torch
from bluecomm import topology_util
from bluecomm.torch import DistributedOptimizer


def call_operations(tensor: torch.Tensor) -> list[torch.Tensor]:
    handle: bf.Handle[torch.Tensor] = bf.allreduce_nonblocking(
        tensor, True, name="x", op=None, timeout_s=1.0
    )
    started: bf.Handle[torch.Tensor] = hvd.allreduce_async_(tensor, op=hvd.Sum)
    first: torch.Tensor = bf.neighbor_allreduce(
        tensor, self_weight=0.5, src_weights={1: 0.5}, dst_weights=[1]
    )
    everything: dict[int, str] = bf.broadcast_object({1: "a"}, root_rank=0)
    assert everything
    return [handle.wait(), bf.synchronize(started), first]


@bf.elastic.run
def train_epochs(state: bf.elastic.TorchState, count: int) -> float:
    for state.epoch in range(state.epoch, count):  # noqa: B020
        state.commit()
    return 1.0 if bluecomm.torch.elastic.should_stop() else 0.0


def call_elastic(model: torch.nn.Module) -> float:
    state = hvd.elastic.TorchState(model, epoch=0)
    state.epoch = 1
    return train_epochs(state, 3)


def train(model: torch.nn.Module) -> torch.optim.Optimizer:
    graph = topology_util.ExponentialGraph(bf.size())
    bf.set_topology(graph, is_weighted=bf.topology_util.IsRegularGraph(graph))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    own: torch.optim.Optimizer = DistributedOptimizer(plain, model)
    ranks: bf.Communicator = bf.ProcessSet([0])
    counted: bf.Stats = bf.stats()
    numbers: list[int] = [hvd.cross_rank(), bf.machine_rank(), bf.join(), ranks.size]
    print(counted, numbers, bf.__version__, bluecomm.torch.__version__)
    return own


def misuse() -> None:
    bf.allreduce("not a tensor")  # type: ignore[arg-type]
    hvd.allreduce(torch.ones(1), nam="x")  # type: ignore[call-arg]
    bf.no_such_name()  # type: ignore[attr-defined]
    hvd.no_such_name()  # type: ignore[attr-defined]
