"""Calls that Python itself rejects, and the calls that the other ranks make."""

from __future__ import annotations

import torch

import bluecomm as bf
import bluecomm.compat.horovod as hvd
from tests.support.refused_calls import (
    full,
    optimize,
    plain_optimizer,
    ring,
    sparse,
    train_with,
    uneven_optimizer,
)


def measure_distance():
    bf.consensus_distance(torch.nn.Linear(2, 2))


def join_all():
    bf.join()


def join_as_optimizer(value, **options):
    """Join with an optimizer, and return a tensor that shows the last rank to join."""
    return full(value) * (uneven_optimizer("gradient_allreduce").join(**options) + 1)


# Functions whose arguments Python itself rejects. Each has a misspelled keyword, is
# called with too many arguments or lacks some.
UNFIT = {
    "allreduce": (
        lambda: bf.allreduce(full(1.0), averag=True),
        lambda v: bf.allreduce(full(v)),
    ),
    "named allreduce": (
        lambda: bf.allreduce(full(1.0), name="x", nam="y"),
        lambda v: bf.allreduce(full(v), name="x"),
    ),
    "barrier": (lambda: bf.barrier(timeout=1), lambda v: bf.barrier()),
    "join": (lambda: bf.join(devise=0), lambda v: join_all()),
    "optimizer.join": (
        lambda: join_as_optimizer(1.0, wait=True),
        lambda v: join_as_optimizer(v),
    ),
    "broadcast_object": (
        lambda: bf.broadcast_object(1.0, root=0, name="x"),
        lambda v: torch.tensor(bf.broadcast_object(v, 1, "x")),
    ),
    "allgather_object": (
        lambda: bf.allgather_object(),
        lambda v: torch.tensor(bf.allgather_object(v)),
    ),
    "inferred sources": (
        lambda: bf.InferSourceFromDestinationRanks([], True, True),
        lambda v: v * torch.tensor(bf.InferSourceFromDestinationRanks([])).sum(),
    ),
    "inferred destinations": (
        lambda: bf.InferDestinationFromSourceRanks(),
        lambda v: v * torch.tensor(bf.InferDestinationFromSourceRanks([])).sum(),
    ),
    "set_topology": (
        lambda: bf.set_topology(ring(), weighted=True),
        lambda v: bf.set_topology(ring()) and None,
    ),
    "set_machine_topology": (
        lambda: bf.set_machine_topology(),
        lambda v: bf.set_machine_topology(bf.RingGraph(1)) and None,
    ),
    "win_create": (
        lambda: bf.win_create(full(1.0), name="w", zero=True),
        lambda v: bf.win_create(full(v), f"w{v}") and None,
    ),
    "win_free": (lambda: bf.win_free(nam="w"), lambda v: bf.win_free() and None),
    "broadcast_parameters": (
        lambda: bf.broadcast_parameters({}, root=0),
        lambda v: bf.broadcast_parameters({"x": full(v)}),
    ),
    "allreduce_parameters": (
        lambda: bf.allreduce_parameters(),
        lambda v: bf.allreduce_parameters({"x": full(v)}),
    ),
    "broadcast_optimizer_state": (
        lambda: bf.broadcast_optimizer_state(plain_optimizer(), root=0),
        lambda v: bf.broadcast_optimizer_state(plain_optimizer()),
    ),
    "average_model": (
        lambda: bf.average_model(torch.nn.Linear(2, 2), True),
        lambda v: bf.average_model(torch.nn.Linear(2, 2)),
    ),
    "consensus_distance": (
        lambda: bf.consensus_distance(),
        lambda v: measure_distance(),
    ),
    "averaged": (
        lambda: bf.averaged(torch.nn.Linear(2, 2), buffers=True),
        lambda v: bf.averaged(torch.nn.Linear(2, 2)).__enter__() and None,
    ),
    "DistributedOptimizer": (
        lambda: bf.DistributedOptimizer(),
        lambda v: optimize(full(v)),
    ),
    "an option of the algorithm": (
        lambda: optimize(full(1.0), algorithm="allreduce", ordr="atc"),
        lambda v: optimize(full(v), algorithm="allreduce"),
    ),
    "a factory of BlueFog": (
        lambda: train_with(num_steps=1),
        lambda v: train_with(),
    ),
    "hvd.DistributedOptimizer": (
        lambda: hvd.DistributedOptimizer(plain_optimizer(), fp16=True),
        lambda v: hvd.DistributedOptimizer(plain_optimizer()) and None,
    ),
    "hvd.allreduce": (
        lambda: hvd.allreduce(full(1.0), averag=True),
        lambda v: hvd.allreduce(full(v)),
    ),
    "hvd.allreduce_async_": (
        lambda: hvd.allreduce_async_(full(1.0), averag=True, name="x"),
        lambda v: hvd.allreduce_async_(full(v), name="x").wait(),
    ),
    "hvd.sparse_allreduce_async": (
        lambda: hvd.sparse_allreduce_async(sparse(1.0), nam="x"),
        lambda v: hvd.sparse_allreduce_async(sparse(v), None, hvd.Sum)().to_dense(),
    ),
    "hvd.broadcast": (
        lambda: hvd.broadcast(full(1.0)),
        lambda v: hvd.broadcast(full(v), 0),
    ),
    "hvd.barrier": (lambda: hvd.barrier(name="x"), lambda v: hvd.barrier()),
    "hvd.broadcast_object": (
        lambda: hvd.broadcast_object(1.0, root=0),
        lambda v: torch.tensor(hvd.broadcast_object(v, 1)),
    ),
    "hvd.grouped_reducescatter": (
        lambda: hvd.grouped_reducescatter([full(1.0)] * 2, average=True),
        lambda v: torch.stack(hvd.grouped_reducescatter([full(v)] * 2)),
    ),
}
