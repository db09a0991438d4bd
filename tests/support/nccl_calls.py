"""Calls of each operation through NCCL; bodies of ranks.

They also run on the host, whose results are expected. Tensors that they make without a
device are on the fake's, because this file is not in ``fakegpu``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import bluecomm as bf
from bluecomm.ops.allreduce import allreduce_parts_nonblocking
from bluecomm.runtime import current_communicator

RANKS = 3

OPERATIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "allreduce": lambda x: bf.allreduce(x),
    "sum": lambda x: bf.allreduce(x, op=bf.Sum),
    "allreduce_": lambda x: bf.allreduce_(x.clone()),
    "bfloat16": lambda x: bf.allreduce(x.bfloat16(), op=bf.Sum),
    "int64": lambda x: bf.allreduce(x.long(), op=bf.Sum),
    "complex": lambda x: bf.allreduce(
        torch.complex(x, x + 1), prescale_factor=2.0, postscale_factor=0.5
    ),
    # A result that is a conjugate view would lose its bit on the way from its process.
    "complex, in place": lambda x: bf.allreduce_(torch.complex(x, x + 1).conj()) * 1,
    "complex rows": lambda x: bf.reducescatter(torch.complex(x, x + 1)[:5], op=bf.Sum),
    "complex at the root": lambda x: bf.reduce(torch.complex(x, x + 1), 1),
    "float8": lambda x: bf.allgather(x[: bf.rank()].to(torch.float8_e4m3fn)).float(),
    # NCCL has no integers of 16 bits, but bytes.
    "int16": lambda x: move_all(x.short()),
    "uint16": lambda x: [one.int() for one in move_all(x.abs().to(torch.uint16))],
    "integers of 16 bits": lambda x: reduce_in_16_bits(x),
    "booleans": lambda x: [
        bf.allreduce(x > 0, op=op)
        for op in (bf.Sum, bf.Product, bf.BitAnd, bf.BitOr, bf.BitXor)
    ],
    "bits": lambda x: reduce_bits(x),
    "adasum": lambda x: add_adaptively(x),
    "fp16": lambda x: bf.allreduce(x, compression=bf.Compression.fp16),
    "not contiguous": lambda x: bf.allreduce_(x.clone().t()),
    "broadcast": lambda x: bf.broadcast(x, 1),
    "broadcast_": lambda x: bf.broadcast_(x.clone(), 2),
    "broadcast, bool": lambda x: bf.broadcast(x > 0, 1),
    "reducescatter": lambda x: bf.reducescatter(x, op=bf.Sum),
    "reducescatter, out": lambda x: bf.reducescatter(x, out=torch.zeros(2, 5)),
    "grouped": lambda x: bf.grouped_allreduce([x, x[:1]], op=bf.Sum),
    "gradient": lambda x: gradient_of(lambda y: bf.allreduce(y), x),
    "gradient of broadcast": lambda x: gradient_of(lambda y: bf.broadcast(y, 1), x),
    "neighbor_allreduce": lambda x: bf.neighbor_allreduce(x),
    "neighbor_allreduce_": lambda x: bf.neighbor_allreduce_(x.clone()),
    "neighbors, bfloat16": lambda x: bf.neighbor_allreduce(x.bfloat16()),
    "neighbors, not contiguous": lambda x: bf.neighbor_allreduce_(x.clone().t()),
    "dynamic": lambda x: send_around(x),
    "gradient of dynamic": lambda x: gradient_of(send_around, x),
    "factors": lambda x: bf.allreduce(x, prescale_factor=2.0, postscale_factor=0.5),
    "factors_": lambda x: bf.allreduce_(x.clone(), op=bf.Sum, prescale_factor=0.5),
    "max": lambda x: bf.allreduce(x, op=bf.Max),
    "min": lambda x: bf.allreduce(x.int(), op=bf.Min),
    "product": lambda x: bf.reducescatter(x, op=bf.Product),
    "allgather": lambda x: bf.allgather(x),
    "allgather, uneven": lambda x: bf.allgather(x[: bf.rank() + 1]),
    "allgather, nothing of one": lambda x: bf.allgather(x[: 2 * bf.rank()].bool()),
    "allgather, nothing": lambda x: bf.allgather(x[:0]),
    "allgather, out": lambda x: bf.allgather(x, out=torch.zeros(18, 5)),
    "allgather, list": lambda x: bf.allgather(
        x[: bf.rank() + 1], out=[torch.zeros(i + 1, 5) for i in range(RANKS)]
    ),
    "alltoall": lambda x: bf.alltoall(x),
    "alltoall, splits": lambda x: bf.alltoall(x, [bf.rank(), 4 - bf.rank(), 2]),
    "alltoall, out": lambda x: bf.alltoall(x, out=torch.zeros(6, 5)),
    "gradient of allgather": lambda x: gradient_of(bf.allgather, x),
    "gradient of uneven": lambda x: gradient_of(bf.allgather, x[: 2 * bf.rank() + 1]),
    "gradient of alltoall": lambda x: gradient_of(
        lambda y: bf.alltoall(y, [bf.rank(), 4 - bf.rank(), 2])[0], x
    ),
    "gradient of reducescatter": lambda x: gradient_of(bf.reducescatter, x),
    "uneven rows": lambda x: bf.reducescatter(x[:5], op=bf.Sum),
    "fewer rows than ranks": lambda x: bf.reducescatter(
        x[:1], prescale_factor=0.5, postscale_factor=4.0
    ),
    "splits": lambda x: bf.reducescatter(x.int(), op=bf.Max, splits=[4, 0, 2]),
    "gradient of splits": lambda x: gradient_of(
        lambda y: bf.reducescatter(y, splits=[1, 3, 2]), x
    ),
    "reduce": lambda x: bf.reduce(x, 1, op=bf.Sum),
    "reduce, out": lambda x: bf.reduce(
        x, 2, postscale_factor=2.0, out=torch.zeros(6, 5) if bf.rank() == 2 else None
    ),
    "gradient of reduce": lambda x: gradient_of(lambda y: bf.reduce(y, 1), x),
    "gather": lambda x: bf.gather(x, 1),
    "gather, uneven": lambda x: bf.gather(x[: 2 * bf.rank()].bool(), 2),
    "gather, list": lambda x: bf.gather(
        x[: bf.rank() + 1],
        0,
        out=[torch.zeros(i + 1, 5) for i in range(RANKS)] if bf.rank() == 0 else None,
    ),
    "gradient of gather": lambda x: gradient_of(
        lambda y: bf.gather(y, 1), x[: bf.rank() + 1]
    ),
    "neighbor_allgather": lambda x: bf.neighbor_allgather(x),
    "neighbor_allgather, uneven": lambda x: bf.neighbor_allgather(x[: 2 * bf.rank()]),
    "neighbor_allgather, dynamic": lambda x: gather_around(x[: bf.rank() + 1].byte()),
    "gradient of neighbor_allgather": lambda x: gradient_of(
        bf.neighbor_allgather, x[: bf.rank() + 1]
    ),
    "gradient of gathering around": lambda x: gradient_of(gather_around, x),
    "second gradient": lambda x: second_gradient_of(bf.neighbor_allgather, x),
    "pair_gossip": lambda x: gossip(x),
    "pair_gossip of weights": lambda x: gossip(x.bfloat16(), 0.75, 0.25),
    "gradient of pair_gossip": lambda x: gradient_of(
        lambda y: gossip(y, 0.5, 0.25) * 1, x
    ),
    "scatter": lambda x: scatter_parts(x, 1),
    "scatter, out": lambda x: scatter_parts(x, 0, torch.zeros(2, 5)),
    "scatter, out on the host": lambda x: scatter_parts(x, 2, x.cpu()[:2].clone()),
    "scatter from the host": lambda x: scatter_parts(x.cpu(), 1, torch.zeros(2, 5)),
    "scatter of unlike parts": lambda x: bf.scatter(
        [x[:1].t(), x.double() > 0, x[:0]] if bf.rank() == 1 else None, 1
    ),
    "hierarchical": lambda x: bf.hierarchical_neighbor_allreduce(x),
    # NCCL does not serve these, which go through the host.
    "no elements": lambda x: bf.allreduce(x[:0]),
}


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(-8, 9, (6, 5), generator=generator).float() for _ in range(RANKS)
    ]


def send_around(x):
    """Return what a ring gives whose direction is not that of the topology."""
    rank = bf.rank()
    left, right = (rank - 1) % RANKS, (rank + 1) % RANKS
    return bf.neighbor_allreduce(
        x, self_weight=0.5, src_weights={right: 0.25}, dst_weights={left: 2.0}
    )


def move_all(x):
    """Return results of the operations that only move a tensor."""
    return [
        bf.broadcast(x, 1),
        bf.allgather(x[: bf.rank() + 1]),
        bf.alltoall(x),
        bf.gather(x, 1),
        bf.neighbor_allgather(x),
    ]


def reduce_in_16_bits(x):
    """Return reductions that overflow, as integers that torch can compare."""
    x, factor = x.short(), bf.rank() + 2000
    positive = x.abs().to(torch.uint16)
    return [
        bf.allreduce(x * 4000, op=bf.Sum),
        bf.allreduce_(x * factor, op=bf.Product),
        bf.reducescatter(x[:5], op=bf.Min),
        bf.reduce(x * 4000, 1, op=bf.Sum),
        bf.allreduce(positive, op=bf.Max).int(),
        bf.allreduce((x.int() * 9000 % 65536).to(torch.uint16), op=bf.Sum).int(),
    ]


def reduce_bits(x):
    """Return bitwise reductions, also of more elements than one call gathers."""
    large = (x.long().flatten() * 987654321987).repeat(2000)
    return [
        bf.allreduce(x.int(), op=bf.BitXor),
        bf.allreduce_(x.char().t(), op=bf.BitAnd),
        bf.allreduce(x.abs().to(torch.uint16), op=bf.BitOr).int(),
        bf.reduce(x.long(), 2, op=bf.BitXor),
        bf.reducescatter(x.byte()[:5], op=bf.BitOr),
        bf.reducescatter(x.int(), op=bf.BitAnd, splits=[4, 0, 2]),
        *(bf.allreduce(large, op=op) for op in (bf.BitAnd, bf.BitOr, bf.BitXor)),
    ]


def add_adaptively(x):
    """Return adasums, also of several tensors and of fewer elements than ranks."""
    lengths, comm = [7, 0, 9], current_communicator()
    parts = {"lengths": lengths, "process_set": comm, "op": bf.Adasum, "name": "parts"}
    return [
        bf.allreduce(x, op=bf.Adasum),
        bf.allreduce_(x.clone().t(), op=bf.Adasum, prescale_factor=0.5),
        bf.allreduce(x.bfloat16(), op=bf.Adasum),
        bf.allreduce(x[0, :2].half(), op=bf.Adasum),
        bf.allreduce(x * (bf.rank() != 1), op=bf.Adasum),
        bf.allreduce(x / (bf.rank() != 2), op=bf.Adasum),
        allreduce_parts_nonblocking(x.flatten(), **parts).wait(),
    ]


def scatter_parts(x, root, out=None):
    """Return the part of the root's tensor that belongs to this rank."""
    parts = [x[number : number + 2] for number in range(RANKS)]
    started = bf.scatter_nonblocking(
        parts if bf.rank() == root else None, root, "parts", out=out
    )
    bf.barrier()
    return started.wait() * 2


def gossip(x, *weights):
    """Average ranks 0 and 1; the other rank does not call."""
    if bf.rank() > 1:
        return x
    return bf.pair_gossip(x, 1 - bf.rank(), *weights)


def gather_around(x):
    """Gather from one rank, and send to another one, except from the last to rank 0."""
    rank = bf.rank()
    return bf.neighbor_allgather(
        x,
        src_ranks=[rank - 1] if rank > 0 else [],
        dst_ranks=[rank + 1] if rank < RANKS - 1 else [],
    )


def second_gradient_of(operation, x):
    """Return the gradient of the squared gradient of the squared results."""
    x = x.clone().requires_grad_()
    squares = (operation(x) ** 2).sum()
    (gradient,) = torch.autograd.grad(squares, x, create_graph=True)
    (gradient**2).sum().backward()
    return x.grad


def gradient_of(operation, x):
    x = x.clone().requires_grad_()
    (operation(x) * (bf.rank() + 1)).sum().backward()
    return x.grad


def run_all(tensors: list[torch.Tensor]) -> dict[str, object]:
    """Return the result of each operation, on values that kernels have just made."""
    x = tensors[bf.rank()]
    return {name: operation(x * 2) for name, operation in OPERATIONS.items()}
