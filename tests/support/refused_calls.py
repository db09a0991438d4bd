"""Calls that one rank refuses, and the calls that the other ranks make meanwhile."""

from __future__ import annotations

import torch

import bluecomm as bf
import bluecomm.compat.horovod as hvd
from bluecomm.compression import HalfCast, TopK
from bluecomm.runtime import current_communicator

# No operation supports this type.
UNKNOWN = torch.ones(3).to(torch.float8_e8m0fnu)


def full(value, *shape, dtype=torch.float32):
    return torch.full(shape or (6,), value, dtype=dtype)


def pair():
    return 1 - bf.rank()


def leaf():
    return torch.ones(6, requires_grad=True)


def sparse(value):
    return torch.eye(3).mul(value).to_sparse()


def some():
    """The same process set on each call, of ranks 0 and 1."""
    comm = current_communicator()
    if not hasattr(comm, "some"):
        comm.some = bf.ProcessSet([0, 1])
    return comm.some


def dynamic(tensor, **options):
    others = [rank for rank in range(bf.size()) if rank != bf.rank()]
    weights = {"self_weight": 0.5, "dst_weights": others}
    weights["src_weights"] = dict.fromkeys(others, 0.25)
    return bf.neighbor_allreduce(tensor, **{**weights, **options})


def optimize(values, **options):
    """Give values to a distributed optimizer and return them."""
    parameter = torch.nn.Parameter(values)
    bf.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), **options)
    return parameter.detach()


def train_with(**options):
    """Make an optimizer by a factory of BlueFog."""
    model = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    bf.DistributedAllreduceOptimizer(plain, model, **options)


def uneven_optimizer(algorithm):
    """Make a distributed optimizer with several buckets, whose ``join`` works."""
    centralized = algorithm == "gradient_allreduce"
    model = torch.nn.Sequential(
        torch.nn.Embedding(3, 2, sparse=centralized), torch.nn.Linear(2, 2)
    )
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {} if centralized else {"uneven_inputs": True}
    return bf.DistributedOptimizer(
        plain, model, algorithm=algorithm, bucket_bytes=16, **options
    )


def plain_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


def ring():
    return bf.RingGraph(bf.size())


def normalize(channels):
    """Pass two samples through ``SyncBatchNorm`` for two channels."""
    bf.SyncBatchNorm(2)(torch.randn(2, channels))


def unpicklable():
    return lambda: None


# The refused call of rank 1, and the call of the others with a value, whose result is
# in proportion to the value.
CASES = {
    "type": (lambda: bf.allreduce(UNKNOWN), lambda v: bf.allreduce(full(v))),
    "no tensor": (lambda: bf.allreduce([1.0]), lambda v: bf.allreduce(full(v))),
    "unknown argument": (
        lambda: bf.allreduce_(full(1.0), averag=True),
        lambda v: bf.allreduce_(full(v)),
    ),
    "missing argument": (
        lambda: bf.allreduce_(),
        lambda v: bf.allreduce_(full(v)),
    ),
    "average and op": (
        lambda: bf.allreduce(full(1.0), True, op=bf.Sum),
        lambda v: bf.allreduce(full(v)),
    ),
    "compression": (
        lambda: bf.allreduce(full(1.0), compression=7),
        lambda v: bf.allreduce(full(v)),
    ),
    "leaf": (lambda: bf.allreduce_(leaf()), lambda v: bf.allreduce_(full(v))),
    "no adjoint": (
        lambda: bf.allreduce(leaf(), op=bf.Adasum),
        lambda v: bf.allreduce(full(v), op=bf.Adasum),
    ),
    "timeout": (
        lambda: bf.allreduce(full(1.0), timeout_s=-1.0),
        lambda v: bf.allreduce(full(v)),
    ),
    "nonblocking": (
        lambda: bf.allreduce_nonblocking(UNKNOWN),
        lambda v: bf.allreduce_nonblocking(full(v)).wait(),
    ),
    "named": (
        lambda: bf.allreduce(UNKNOWN, name="x"),
        lambda v: bf.allreduce(full(v), name="x"),
    ),
    "named in the third place": (
        lambda: bf.allreduce_(full(1.0), None, "x", op=17),
        lambda v: bf.allreduce_(full(v), None, "x"),
    ),
    "large": (
        lambda: bf.allreduce(UNKNOWN, name="x"),
        lambda v: bf.allreduce(full(v, 1 << 20), name="x"),
    ),
    "root": (
        lambda: bf.broadcast(full(1.0), 17),
        lambda v: bf.broadcast(full(v), 0),
    ),
    "broadcast of another root": (
        lambda: bf.broadcast(UNKNOWN, 2),
        lambda v: bf.broadcast(full(v), 2),
    ),
    "allgather": (
        lambda: bf.allgather(torch.tensor(1.0)),
        lambda v: bf.allgather(full(v)),
    ),
    "alltoall": (
        lambda: bf.alltoall(full(1.0), [1, 2, 4]),
        lambda v: bf.alltoall(full(v)),
    ),
    "reducescatter": (
        lambda: bf.reducescatter(torch.tensor(1.0)),
        lambda v: bf.reducescatter(full(v)),
    ),
    "barrier": (lambda: bf.barrier(timeout_s=0), lambda v: bf.barrier()),
    "neighbor_allreduce": (
        lambda: bf.neighbor_allreduce(full(1, dtype=torch.int32)),
        lambda v: bf.neighbor_allreduce(full(v)),
    ),
    "weights": (
        lambda: bf.neighbor_allreduce(full(1.0), self_weight=1.0),
        lambda v: bf.neighbor_allreduce(full(v)),
    ),
    "dynamic weights": (
        lambda: dynamic(full(1.0), self_weight=float("nan")),
        lambda v: dynamic(full(v)),
    ),
    "unchecked weights": (
        lambda: dynamic(full(1.0), self_weight=None, enable_topo_check=False),
        lambda v: dynamic(full(v), enable_topo_check=False),
    ),
    "checked type": (lambda: dynamic(UNKNOWN), lambda v: dynamic(full(v))),
    "neighbor_allgather": (
        lambda: bf.neighbor_allgather(full(1.0), src_ranks=[0]),
        lambda v: bf.neighbor_allgather(full(v)),
    ),
    "hierarchical_neighbor_allreduce": (
        lambda: bf.hierarchical_neighbor_allreduce(full(1, dtype=torch.int32)),
        lambda v: bf.hierarchical_neighbor_allreduce(full(v)),
    ),
    "compressed_allreduce": (
        lambda: bf.compressed_allreduce(full(1.0), bf.Compression.none),
        lambda v: bf.compressed_allreduce(full(v), HalfCast()),
    ),
    "codec of a piece": (
        lambda: bf.compressed_allreduce(full(1.0), TopK(7)),
        lambda v: bf.compressed_allreduce(full(v), HalfCast()),
    ),
    "sparse_allreduce": (
        lambda: bf.sparse_allreduce(full(1.0)),
        lambda v: bf.sparse_allreduce(sparse(v)).to_dense(),
    ),
    "member of a group": (
        lambda: bf.grouped_allreduce([full(1.0), UNKNOWN, full(1.0)]),
        lambda v: torch.stack(bf.grouped_allreduce([full(v)] * 3)),
    ),
    "member of a named group": (
        lambda: bf.grouped_allgather([full(1.0), None, full(1.0)], "x"),
        lambda v: torch.stack(bf.grouped_allgather([full(v)] * 3, "x")),
    ),
    "arguments of a group": (
        lambda: bf.grouped_reducescatter([full(1.0)] * 2, opp=bf.Sum),
        lambda v: torch.stack(bf.grouped_reducescatter([full(v)] * 2)),
    ),
    "broadcast_object": (
        lambda: bf.broadcast_object(unpicklable(), 1),
        lambda v: torch.tensor(bf.broadcast_object(v, 1)),
    ),
    "allgather_object": (
        lambda: bf.allgather_object(unpicklable()),
        lambda v: torch.tensor(bf.allgather_object(v)),
    ),
    "inferred ranks": (
        lambda: bf.InferSourceFromDestinationRanks([17]),
        lambda v: v * torch.tensor(bf.InferSourceFromDestinationRanks([])).sum(),
    ),
    "win_create": (
        lambda: bf.win_create(UNKNOWN, "w"),
        lambda v: bf.win_create(full(v), f"w{v}") and None,
    ),
    "parameters": (
        lambda: bf.broadcast_parameters([("x", 1.0)]),
        lambda v: bf.broadcast_parameters({"x": full(v)}),
    ),
    "model": (
        lambda: bf.average_model([full(1.0)]),
        lambda v: bf.average_model(torch.nn.Linear(2, 2)),
    ),
    "optimizer": (
        lambda: optimize(full(1.0), num_steps_per_communication=0),
        lambda v: optimize(full(v)),
    ),
    "parameter of an optimizer": (
        lambda: optimize(torch.ones(3, dtype=torch.complex64)),
        lambda v: optimize(full(v)),
    ),
    "communication type": (
        lambda: train_with(communication_type="all"),
        lambda v: train_with(),
    ),
    "topology": (
        lambda: bf.set_topology(bf.RingGraph(7)),
        lambda v: bf.set_topology(ring()) and None,
    ),
    "no topology of machines": (
        lambda: bf.set_machine_topology(None),
        lambda v: bf.set_machine_topology(bf.RingGraph(1)) and None,
    ),
    "name of a window": (
        lambda: bf.win_free(["w"]),
        lambda v: bf.win_free() and None,
    ),
    "input of a layer": (lambda: normalize(3), lambda v: normalize(2)),
    "horovod's average and op": (
        lambda: hvd.allreduce(full(1.0), True, op=hvd.Sum),
        lambda v: hvd.allreduce(full(v)),
    ),
    "horovod's adasum": (
        lambda: hvd.reducescatter(full(1.0), op=hvd.Adasum),
        lambda v: hvd.reducescatter(full(v)),
    ),
    "horovod's compression": (
        lambda: hvd.grouped_allreduce([full(1.0)] * 2, compression=7),
        lambda v: torch.stack(hvd.grouped_allreduce([full(v)] * 2)),
    ),
    "horovod's state": (
        lambda: hvd.broadcast_optimizer_state({}, 0),
        lambda v: hvd.broadcast_optimizer_state(plain_optimizer(), 0),
    ),
    "horovod's group": (
        lambda: hvd.grouped_allreduce([full(1.0), UNKNOWN]),
        lambda v: torch.stack(hvd.grouped_allreduce([full(v)] * 2)),
    ),
}

# Rank 2 takes no part in these.
CASES_OF_TWO = {
    "process set": (
        lambda: bf.allreduce(UNKNOWN, process_set=some()),
        lambda v: bf.allreduce(full(v), process_set=some()),
    ),
    "pair": (
        lambda: bf.pair_gossip(full(1, dtype=torch.int32), pair()),
        lambda v: bf.pair_gossip(full(v), pair()),
    ),
    "named pair": (
        lambda: bf.pair_gossip(UNKNOWN, pair(), name="x"),
        lambda v: bf.pair_gossip(full(v), pair(), name="x"),
    ),
}
