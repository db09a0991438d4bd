"""Operations through NCCL on the fake's tensors, compared with those on the host."""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.ops import nccl_gather, nccl_scatter, start
from bluecomm.ops.nccl_call import make_nccl_call
from bluecomm.runtime import current_communicator
from tests.support.deadlines import wait_until
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import NCCL
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.nccl_calls import OPERATIONS, RANKS, gradient_of, inputs, run_all
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def run_and_name_kinds(tensors: list[torch.Tensor]) -> list[str]:
    """Return the kinds of the operations of ``run_all`` that go through NCCL.

    Operations that NCCL lacks are included; other calls of NCCL carry them out.
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
        wait_until(handle.done, "the call has not ended", look_s=0.001)
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


def scatter_first() -> tuple[list[float], list[bool]]:
    """Return a part, and whether its memory belongs to the stream of the start.

    The scatter is the first call through NCCL, so its device is not known yet.
    """
    memory = this_memory()
    parts = None
    stream, empty = memory.new_stream(), memory.empty
    are_of_start = []

    def note(*arguments):
        are_of_start.append(memory.current_stream == stream)
        return empty(*arguments)

    with mock.patch.object(memory, "empty", note):
        with memory.on_stream(stream):
            if bf.rank() == 0:
                parts = [torch.full((3,), float(rank)) for rank in range(RANKS)]
            handle = bf.scatter_nonblocking(parts, 0)
        part = handle.wait()
    return part.tolist(), are_of_start


def test_a_part_belongs_to_the_stream_of_the_start():
    found = run_ranks_on_gpus(RANKS, scatter_first, environment=NCCL)
    assert found[1:] == [([rank] * 3, [True]) for rank in range(1, RANKS)]


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
