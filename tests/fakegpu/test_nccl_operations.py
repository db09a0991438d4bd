"""Operations through NCCL on the fake's tensors, compared with those on the host."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import networkx as nx
import pytest
import torch

import bluecomm as bf
from bluecomm.ops import nccl_gather, nccl_scatter, start
from bluecomm.ops.allreduce import allreduce_parts_nonblocking
from bluecomm.ops.nccl_call import make_nccl_call
from bluecomm.runtime import current_communicator
from tests.support.deadlines import DEADLINE_S
from tests.support.errors import error_text
from tests.support.fakegpu.faults import await_end, set_fake
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import RankFailure, run_ranks

pytestmark = pytest.mark.mp
RANKS = 3
NCCL = {"BLUECOMM_DEVICE_TRANSPORT": "nccl"}

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


def run_and_name_kinds(tensors: list[torch.Tensor]) -> list[str]:
    """Return the kinds of the operations of ``run_all`` that go through NCCL.

    Those that NCCL does not have do so, too.
    """
    kinds = set()

    def make(comm, staging, kind, *rest):
        kinds.add(kind)
        return make_nccl_call(comm, staging, kind, *rest)

    with (
        mock.patch.object(start, "make_nccl_call", make),
        mock.patch.object(nccl_gather, "make_nccl_call", make),
        mock.patch.object(nccl_scatter, "make_nccl_call", make),
    ):
        run_all(tensors)
    copies = bf.stats().devices.copies_to_host
    for name in ("integers of 16 bits", "booleans", "bits", "adasum"):
        OPERATIONS[name](tensors[bf.rank()])
    assert bf.stats().devices.copies_to_host == copies
    return sorted(kinds)


def run_in_sets(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return results of calls of sets that overlap, started in orders that differ."""
    rank = bf.rank()
    x = tensors[rank] * 2
    sets = [bf.ProcessSet(ranks) for ranks in ([0, 1], [1, 2], [0, 2], [0, 1, 2])]
    mine = [one for one in sets if rank in one.ranks]
    results = []
    for i in range(3):
        turned = mine[(rank + i) % len(mine) :] + mine[: (rank + i) % len(mine)]
        handles = {
            one: bf.allreduce_nonblocking(
                x + i, op=bf.Sum, process_set=one, name=f"{i}"
            )
            for one in turned
        }
        results += [handles[one].wait() * 2 for one in mine]
    for one in mine:
        bf.set_topology(bf.RingGraph(one.size), process_set=one)
        results += [
            bf.allgather(x[:rank], process_set=one),
            bf.broadcast(x, one.ranks[-1], process_set=one),
            gradient_of(lambda y, one=one: bf.allreduce(y, process_set=one), x),
            bf.neighbor_allreduce(x, process_set=one),
        ]
    sets[3].free()
    more = bf.ProcessSet([0, 1, 2])
    return [*results, bf.allreduce(x, process_set=more)]


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


def call_in_other_orders(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return results of calls that each rank makes in another order."""
    x = tensors[bf.rank()]

    def start(name):
        return bf.allreduce_nonblocking(x + len(name), op=bf.Sum, name=name)

    if bf.rank() == 0:
        first, second = start("a"), start("bb")
        results = [first.wait(), second.wait()]
    elif bf.rank() == 1:  # waits for the second before it calls the first
        second = start("bb").wait()
        results = [start("a").wait(), second]
    else:
        second = start("bb")
        results = [start("a").wait(), second.wait()]
    return [result * 2 for result in results]


def overlap(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of calls that run while the program goes on."""
    x = tensors[bf.rank()] * 2
    for i in range(8):  # nobody waits for these, and their tensors are dropped
        handle = bf.allreduce_nonblocking(x + i, name=f"dropped {i}")
        while not handle.done():
            time.sleep(0.001)
        del handle
        current_communicator().world.reap()
    handles = [
        bf.allreduce_nonblocking(x + i, op=bf.Sum, name=f"part {i}") for i in range(4)
    ]
    results = [handle.wait() * 2 for handle in handles]
    for _ in range(2):
        bf.broadcast_(x, 1)
        x += 1
    for i in range(2):
        averaged = bf.neighbor_allreduce_nonblocking(x, name=f"neighbors {i}")
        x = averaged.wait() * 4
    gathered = [bf.allgather_nonblocking(x + i, name="same") for i in range(3)]
    bf.alltoall_nonblocking(x * 3, name="dropped")
    results += [handle.wait() * 2 for handle in gathered]
    if (memory := this_memory()) is not None:
        memory.synchronize()
    # From now on another rank may shut down, whose open calls end NCCL on all ranks.
    bf.barrier()
    bf.allreduce_nonblocking(x + 1, name="the shutdown finishes it")
    return [*results, x]


def wait_on_another_stream(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return results of calls whose inputs are dropped as soon as they have ended."""
    memory = this_memory()
    other = 0 if memory is None else memory.new_stream()

    def on_other() -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if memory is None else memory.on_stream(other)

    x = tensors[bf.rank()] * 2
    results = []
    for i in range(4):
        started = [
            bf.neighbor_allreduce_nonblocking(x, name=f"neighbors {i}"),
            bf.allreduce_nonblocking_(x.clone().t(), name=f"turned {i}"),
        ]
        with on_other():
            results += [handle.wait() for handle in started]
        del started
        x = x + 1
    if memory is not None:
        with on_other():
            memory.synchronize()
    return results


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(-8, 9, (6, 5), generator=generator).float() for _ in range(RANKS)
    ]


BODIES = (
    *(run_all, run_in_sets, call_in_other_orders, overlap),
    wait_on_another_stream,
)


@pytest.fixture(scope="module")
def expected():
    return {body: run_ranks(RANKS, body, inputs()) for body in BODIES}


@pytest.mark.parametrize("body", BODIES)
def test_results_are_those_of_the_host(expected, body, seed):
    found = run_ranks_on_gpus(RANKS, body, inputs(), seed=seed, environment=NCCL)
    torch.testing.assert_close(found, expected[body], equal_nan=True)


def test_operations_go_through_nccl():
    every = {
        *("allgather", "allreduce", "alltoall", "broadcast", "gather"),
        *("hierarchical_neighbor_allreduce", "neighbor_allgather"),
        *("neighbor_allreduce", "pair_gossip", "reduce", "reducescatter", "scatter"),
    }
    alone = every - {"pair_gossip"}  # the third rank is not one of the pair
    found = run_ranks_on_gpus(RANKS, run_and_name_kinds, inputs(), environment=NCCL)
    assert found == [sorted(every), sorted(every), sorted(alone)]


def begin_again(*, unlike: bool) -> tuple[str, list[float]]:
    """Return what the ranks choose when they meet with their GPUs, and a sum."""
    if unlike and bf.rank() == 1:
        set_fake(NCCL_VERSION="21805")
    bf.shutdown()
    bf.init()
    chosen = current_communicator().world.device_transport.path
    return chosen, bf.allreduce(torch.ones(2), op=bf.Sum).tolist()


@pytest.mark.parametrize(("unlike", "chosen"), [(False, "nccl"), (True, "staged")])
def test_ranks_choose_nccl_if_all_have_it(unlike, chosen):
    found = run_ranks_on_gpus(RANKS, functools.partial(begin_again, unlike=unlike))
    assert found == [(chosen, [RANKS] * 2)] * RANKS


def test_each_wait_is_needed(expected, tmp_path):
    """The backend without one of its waits races, or gives something else."""

    def run(environment):
        return run_ranks_on_gpus(
            RANKS, overlap, inputs(), environment={**NCCL, **environment}
        )

    def check(environment):
        found = run(environment)
        torch.testing.assert_close(found, expected[overlap])

    waits = waits_of(run, tmp_path / "sites")
    assert sum("cuStreamWaitEvent" in one for one in waits) == 2
    assert any("cuEventQuery" in one for one in waits)
    assert not unneeded_waits(check, waits)


# --- Errors --------------------------------------------------------------------------


def differ() -> list[str]:
    """Return errors of calls that differ, between calls that do not."""
    x = torch.ones(4)
    rank = bf.rank()
    found = [error_text(lambda: bf.allreduce(x[: 4 - rank % 2], name="shape"))]
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    found.append(error_text(lambda: bf.broadcast(x, rank % 2, name="root")))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    host = x.cpu() if rank == 1 else x
    found.append(error_text(lambda: bf.allreduce(host, name="host")))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    found.append(error_text(lambda: bf.allgather(host, name="rows")))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    narrow = x.view(4, 1) if rank == 1 else x.view(2, 2)
    found.append(error_text(lambda: bf.allgather(narrow, name="columns")))
    given = torch.zeros(3) if rank == 1 else None
    found.append(error_text(lambda: bf.allgather(x, out=given, name="out")))
    assert bf.allgather(x).shape == (4 * RANKS,)
    with capturing():
        found.append(error_text(lambda: bf.allgather_nonblocking(x, name="captured")))
    assert bf.allgather(x).shape == (4 * RANKS,)
    found.append(error_text(lambda: send_to_nobody(x)))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    return found


def differ_in_more_operations() -> dict[str, str]:
    """Return errors of calls that differ; a wait for the deadline fails the test."""
    x = torch.ones(4)
    rank = bf.rank()
    host = x.cpu() if rank == 1 else x
    found = {
        "root": error_text(lambda: bf.reduce(x, rank % 2, name="root")),
        "rows": error_text(lambda: bf.gather(host, 0, name="rows")),
        "neighbors": error_text(lambda: bf.neighbor_allgather(host, name="neighbors")),
        "machines": error_text(
            lambda: bf.hierarchical_neighbor_allreduce(host, name="machines")
        ),
    }
    bits, op = torch.ones(100_000, dtype=torch.int32), (bf.BitAnd, bf.BitOr)[rank % 2]
    found["bits"] = error_text(lambda: bf.allreduce(bits, op=op, name="bits"))
    if rank < 2:
        found["pair"] = error_text(lambda: bf.pair_gossip(host, 1 - rank, name="pair"))
        wrong = x.int() if rank == 0 else x
        found["refused"] = error_text(lambda: bf.pair_gossip(wrong, 1 - rank))
        assert bf.pair_gossip(x, 1 - rank).tolist() == [1.0] * 4
    graph = nx.DiGraph([(1, 2), (2, 1)])
    graph.add_node(0)
    bf.set_topology(graph)
    wrong = x.int() if rank == 0 else x
    found["no neighbors"] = error_text(lambda: bf.neighbor_allreduce(wrong))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    return found


def test_more_calls_that_differ_fail_on_all_ranks():
    results = run_ranks_on_gpus(RANKS, differ_in_more_operations, environment=NCCL)
    for rank, found in enumerate(results):
        assert "MismatchError: reduce 'root'" in found["root"]
        assert "One rank's tensor goes through NCCL" in found["rows"]
        assert "One rank's tensor goes through NCCL" in found["neighbors"]
        assert "One rank's tensor goes through NCCL" in found["machines"]
        assert "MismatchError: allreduce 'bits'" in found["bits"]
        if rank < 2:
            assert "One rank's tensor goes through NCCL" in found["pair"]
        if rank == 0:
            assert found["refused"].startswith("ValueError")
            assert found["no neighbors"].startswith("ValueError")
            continue
        if rank == 1:
            assert "refused its call: ValueError" in found["refused"]
        assert "refused its call: ValueError" in found["no neighbors"]


def fail_and_go_on() -> dict[str, list[str]]:
    """Return errors of two calls, and of later ones whose parts have their names."""
    x = torch.ones(4)
    rank = bf.rank()
    calls = {
        "allgather": lambda y: bf.allgather(y, name="rows"),
        "alltoall": lambda y: bf.alltoall(y, name="parts"),
        "gather": lambda y: bf.gather(y, 3, name="gathered"),
        "neighbors": lambda y: bf.neighbor_allgather(y, name="neighbors"),
        "machines": lambda y: bf.hierarchical_neighbor_allreduce(y, name="machines"),
    }
    found = {}
    for key, call in calls.items():
        host = x.cpu() if rank == 1 else x
        no_tensor: Any = None if rank == 2 else x
        errors = [error_text(lambda c=call, y=y: c(y)) for y in (host, no_tensor)]
        for _ in range(64):  # the parts of calls have 64 names in turn
            call(x)
        found[key] = errors
    return found


def test_calls_that_failed_on_all_ranks_leave_nothing_behind():
    results = run_ranks_on_gpus(
        4, fail_and_go_on, environment=NCCL, ranks_per_machine=2
    )
    for rank, found in enumerate(results):
        for unlike, refused in found.values():
            assert "One rank's tensor goes through NCCL" in unlike
            assert ("refused its call" in refused) == (rank != 2)


def scatter_wrongly() -> dict[str, Any]:
    """Return the first result of a world, and errors of calls that differ."""
    x = torch.ones(2)
    rank = bf.rank()
    given = [x, x + 1, x + 2]
    found: dict[str, Any] = {"first": bf.scatter(given if rank == 2 else None, 2)}
    found["root"] = error_text(
        lambda: bf.scatter(given if rank == rank % 2 else None, rank % 2, "root")
    )
    found["too few"] = error_text(
        lambda: bf.scatter(given[1:] if rank == 0 else None, 0, "few")
    )
    narrow = x[:1].clone() if rank == 1 else torch.zeros(2)
    found["out"] = error_text(
        lambda: bf.scatter(given if rank == 0 else None, 0, "out", out=narrow)
    )
    with capturing():
        found["captured"] = error_text(
            lambda: bf.scatter(given if rank == 0 else None, 0, "captured")
        )
    found["last"] = bf.scatter(given if rank == 0 else None, 0)
    return found


def test_scatters_that_differ_fail_on_all_ranks():
    results = run_ranks_on_gpus(RANKS, scatter_wrongly, environment=NCCL)
    for rank, found in enumerate(results):
        assert found["first"].tolist() == found["last"].tolist() == [rank + 1.0] * 2
        assert "MismatchError: scatter 'root'" in found["root"]
        assert "expected a tensor for each of 3 ranks" in found["too few"]
        assert ("out must have type" in found["out"]) == (rank == 1)
        assert (found["out"] == "no error") == (rank != 1)
        assert "captures a CUDA graph" in found["captured"]


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Let the current stream of this rank capture a CUDA graph."""
    memory, cuda = this_memory(), load().cuda
    assert memory is not None
    cuda.fakegpu_set_capturing(memory.stream, True)
    try:
        yield
    finally:
        cuda.fakegpu_set_capturing(memory.stream, False)


def send_to_nobody(x: torch.Tensor) -> None:
    """Send to rank 2, which expects nothing; rank 0 is not concerned."""
    to = {2: 1.0} if bf.rank() == 1 else {}
    bf.neighbor_allreduce(
        x,
        self_weight=1.0,
        src_weights={},
        dst_weights=to,
        enable_topo_check=False,
        name="nobody",
    )


def test_calls_that_differ_fail_on_all_ranks_and_others_go_on():
    for texts in run_ranks_on_gpus(RANKS, differ, environment=NCCL):
        shape, root, host, rows, columns, out, captured, nobody = texts
        assert "MismatchError: allreduce 'shape'" in shape
        assert "All ranks must pass the same shape and dtype" in shape
        assert "MismatchError: broadcast 'root'" in root
        assert "One rank's tensor goes through NCCL" in host
        assert "One rank's tensor goes through NCCL" in rows
        assert "except for the first dimension, the same shape" in columns
        assert "the tensors of out have other numbers of rows" in out
        assert "RuntimeError" in captured
        assert "captures a CUDA graph" in captured
        assert "MismatchError: neighbor_allreduce 'nobody'" in nobody
        assert "rank 1 sends to rank 2, which does not receive from it" in nobody


def first_error() -> str:
    return error_text(lambda: bf.allreduce(torch.ones(4)))


def old_on_rank_1() -> str:
    if bf.rank() == 1:
        set_fake(NCCL_VERSION="21304")
    return first_error()


def test_an_old_nccl_is_an_error_that_names_rank_device_and_remedy():
    for text in run_ranks_on_gpus(2, old_on_rank_1, environment=NCCL):
        assert "rank 1 cannot call NCCL on CUDA device 1: NCCL 2.13.4 is" in text
        assert "bluecomm needs 2.14 or newer" in text
        assert "set BLUECOMM_DEVICE_TRANSPORT=staged" in text


def unlike_versions() -> str:
    if bf.rank() == 1:
        set_fake(NCCL_VERSION="21805")
    return first_error()


def test_ranks_with_different_versions_are_an_error_that_names_them():
    for text in run_ranks_on_gpus(2, unlike_versions, environment=NCCL):
        assert text.startswith("MismatchError: allreduce")
        assert "rank 0 (CUDA device 0) has NCCL 2.29.7" in text
        assert "rank 1 (CUDA device 1) has NCCL 2.18.5" in text


def hang_at_start() -> str:
    if bf.rank() == 1:
        set_fake(FAIL="ncclCommInitRankConfig:1=hang")
    bf.barrier()  # a rank that came too late would be the reason of the timeout
    return error_text(lambda: bf.allreduce(torch.ones(4), timeout_s=10.0))


def test_a_communicator_that_does_not_start_ends_at_the_deadline():
    for text in run_ranks_on_gpus(2, hang_at_start, environment=NCCL):
        assert text.startswith("CommunicationTimeout: allreduce")
        assert "NCCL has not taken the call in time" in text


def fail_on_rank_1(fault: str) -> str:
    """Return the error of calls after one in which NCCL fails on rank 1.

    That one may have returned before the failure is noticed.
    """
    x = torch.ones(4)
    bf.allreduce(x)
    if bf.rank() == 1:
        set_fake(FAIL=fault)
    found: list[torch.Tensor] = []
    error_text(lambda: found.append(bf.allreduce(x, timeout_s=2.0)))
    for result in found:
        result.tolist()  # the device goes on after the abort
    deadline = time.monotonic() + DEADLINE_S
    while (later := error_text(lambda: bf.allreduce(x))) == "no error":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return later


@pytest.mark.parametrize("fault", ["ncclAllReduce:1=2", "ncclAllReduce:1=hang"])
def test_a_failure_on_one_rank_aborts_the_communicator_of_all(fault):
    for text in run_ranks_on_gpus(RANKS, fail_on_rank_1, fault, environment=NCCL):
        assert "NCCL's communicator was aborted" in text


def fail_midway() -> str:
    """Return the error of an operation in whose second call NCCL fails on rank 1."""
    x = torch.ones(4)
    bf.allreduce(x, op=bf.Adasum)
    if bf.rank() == 1:
        set_fake(FAIL="ncclAllReduce:1=2")
    return error_text(lambda: bf.allreduce(x, op=bf.Adasum))


def test_a_failure_in_one_of_several_calls_reaches_all_ranks():
    for text in run_ranks_on_gpus(RANKS, fail_midway, environment=NCCL):
        assert "NCCL's communicator was aborted" in text


def lose_rank_1() -> None:
    """Lose a rank that has got the number of a call, but has not issued it."""
    x = torch.ones(4)
    bf.allreduce(x)
    if bf.rank() == 1:
        set_fake(FAIL="ncclAllReduce:1=kill")
    found: list[torch.Tensor] = []
    error = error_text(lambda: found.append(bf.allreduce(x)))
    world = current_communicator().world
    await_end(world.peers[1].pid)
    world.engine.peer_lost(1, "rank 1 was killed")  # as bfrun reports it
    for result in found:
        result.tolist()  # the device goes on after the abort
        error = error_text(lambda: bf.allreduce(x))
    # A failure, since the rank that died fails the run anyway.
    raise AssertionError(f"survivor: {error}")


@pytest.mark.parametrize("remote_errors", ["0", "1"])
def test_a_lost_rank_frees_the_others(remote_errors):
    environment = {**NCCL, "FAKEGPU_REMOTE_ERRORS": remote_errors}
    with pytest.raises(RankFailure) as failure:
        run_ranks_on_gpus(
            RANKS, lose_rank_1, environment=environment, report_s=DEADLINE_S
        )
    assert str(failure.value).count("AssertionError: survivor: PeerLostError") == 2
