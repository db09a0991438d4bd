"""Collectives of torch.distributed on the fake's tensors, and their waits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from bluecomm.device.cuda_staging import CudaStaging
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import run_ranks
from tests.support.torch_world import torch_world

pytestmark = pytest.mark.mp
RANKS = 3

Tensor = torch.Tensor


def all_gather(x: Tensor) -> list[Tensor]:
    parts = [torch.zeros_like(x) for _ in range(RANKS)]
    dist.all_gather(parts, x)
    return parts


def all_gather_with_gaps(x: Tensor) -> list[Tensor]:
    wide = [torch.zeros(6, 10) for _ in range(RANKS)]
    dist.all_gather([one[:, ::2] for one in wide], x)
    return wide


def gather(x: Tensor) -> list[Tensor] | None:
    is_root = dist.get_rank() == 1
    parts = [torch.zeros_like(x) for _ in range(RANKS)] if is_root else None
    dist.gather(x, parts, dst=1)
    return parts


def scatter(x: Tensor) -> Tensor:
    output = torch.zeros(2, 5)
    dist.scatter(output, list(x.chunk(3)) if dist.get_rank() == 1 else None, src=1)
    return output


def reduce_scatter(x: Tensor) -> Tensor:
    output = torch.zeros(2, 5)
    dist.reduce_scatter(output, list(x.chunk(RANKS)))
    return output


def reduce_scatter_uneven(x: Tensor) -> Tensor:
    output = torch.zeros(dist.get_rank() + 1, 5)
    dist.reduce_scatter(output, [x[:1], x[1:3], x[3:]])
    return output


def reduce_scatter_rows(x: Tensor) -> Tensor:
    output = torch.zeros(10)
    dist.reduce_scatter_tensor(output, x.view(5, 6))  # the rows are not divisible
    return output


def reduce_scatter_single(x: Tensor) -> Tensor:
    dist.reduce_scatter_tensor(x[2:4], x)  # into a part of the input
    return x


def all_to_all(x: Tensor) -> list[Tensor]:
    parts = [torch.zeros(2, 5) for _ in range(RANKS)]
    dist.all_to_all(parts, list(x.chunk(RANKS)))
    return parts


def all_to_all_single(x: Tensor) -> Tensor:
    output = torch.zeros_like(x)
    dist.all_to_all_single(output, x)
    return output


def all_to_all_uneven(x: Tensor) -> list[Tensor]:
    rank = dist.get_rank()
    parts = [torch.zeros(rank + other, 5) for other in range(RANKS)]
    dist.all_to_all(parts, [x[: rank + other] for other in range(RANKS)])
    return parts


def all_to_all_single_uneven(x: Tensor) -> Tensor:
    # Rank 0 has nothing for itself.
    rank = dist.get_rank()
    counts = [rank + other for other in range(RANKS)]
    output = torch.zeros(sum(counts), 5)
    source = torch.cat([x[:count] for count in counts])
    dist.all_to_all_single(output, source, counts, counts)
    return output


def all_gather_uneven(x: Tensor) -> list[Tensor]:
    parts = [torch.zeros(2 * rank, 5) for rank in range(RANKS)]
    dist.all_gather(parts, x[: 2 * dist.get_rank()])
    return parts


def rows_coalesced(x: Tensor) -> list[Tensor]:
    """Gather and scatter two tensors in one call each."""
    gathered = [torch.zeros(RANKS * 6, 5), torch.zeros(RANKS * 2, 5)]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(gathered[0], x)
        dist.all_gather_into_tensor(gathered[1], x[:2])
    scattered = [torch.zeros(2, 5), torch.zeros(5)]
    with dist._coalescing_manager(async_ops=True) as works:
        dist.reduce_scatter_tensor(scattered[0], x)
        dist.reduce_scatter_tensor(scattered[1], x[:3])
    works.wait()
    return [one * 2 for one in [*gathered, *scattered]]


def all_gather_single(x: Tensor) -> Tensor:
    output = torch.zeros(RANKS * 6, 5)
    dist.all_gather_into_tensor(output, x)
    return output


def all_gather_in_place(x: Tensor) -> Tensor:
    output, rank = torch.zeros(RANKS * 6, 5), dist.get_rank()
    own = output[6 * rank : 6 * rank + 6].copy_(x)
    dist.all_gather_into_tensor(output, own)
    return output


def in_place(call: Callable[..., object], **options: Any) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        call(x, **options)
        return x

    return run


def average_of_integers(x: Tensor) -> Tensor:
    whole = (x * 10).long()
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    return whole


def of_integers(x: Tensor) -> list[Tensor]:
    """Return reductions that NCCL does not have."""
    bits, short, at_root = (x * 1000).int(), (x * 10_000).short(), (x * 1000).long()
    dist.all_reduce(bits, op=dist.ReduceOp.BXOR)
    dist.all_reduce(short)
    dist.reduce(at_root, 1, op=dist.ReduceOp.BOR)
    return [bits, short, at_root * (dist.get_rank() == 1)]


def not_contiguous(x: Tensor) -> Tensor:
    dist.all_reduce(x.t())
    return x


def coalesced(x: Tensor) -> list[Tensor]:
    both = [x, x[:2] + 1]
    dist.all_reduce_coalesced(both)
    return both


def ring(x: Tensor) -> Tensor:
    """Send to the next rank, and receive from the one before."""
    rank, received = dist.get_rank(), torch.zeros_like(x)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, (rank + 1) % RANKS),
            dist.P2POp(dist.irecv, received, (rank - 1) % RANKS),
        ]
    )
    for one in works:
        one.wait()
    return received * 2


def both_ways(x: Tensor) -> list[Tensor]:
    """Send to each rank before anything is received, in orders that differ."""
    rank = dist.get_rank()
    others = [(rank + i) % RANKS for i in range(1, RANKS)]
    received = [torch.zeros_like(x) for _ in range(2 * len(others))]
    works = [dist.isend(x + tag, one, tag=tag) for one in others for tag in range(2)]
    for i, one in enumerate(others[::-1]):
        works += [
            dist.irecv(received[2 * i + tag], one, tag=tag)
            for tag in reversed(range(2))
        ]
    for work in works:
        assert work is not None
        work.wait()
    return [one * 2 for one in received]


def one_way(x: Tensor) -> Tensor:
    """Pass values on from rank to rank, with calls that wait."""
    rank = dist.get_rank()
    if rank:
        before = torch.zeros_like(x)
        dist.recv(before, rank - 1)
        x += before
    if rank + 1 < RANKS:
        dist.send(x, rank + 1)
        x += 1  # behind the message
    return x


OPERATIONS: dict[str, Callable[[Tensor], object]] = {
    "all_reduce": in_place(dist.all_reduce),
    "all_reduce, max": in_place(dist.all_reduce, op=dist.ReduceOp.MAX),
    "average of integers": average_of_integers,
    "integers of other types, and bits": of_integers,
    "not contiguous": not_contiguous,
    "coalesced": coalesced,
    "broadcast": in_place(dist.broadcast, src=1),
    "reduce": in_place(dist.reduce, dst=1),
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_single": reduce_scatter_single,
    "reduce_scatter, uneven": reduce_scatter_uneven,
    "reduce_scatter, rows": reduce_scatter_rows,
    "all_gather": all_gather,
    "all_gather_single in place": all_gather_in_place,
    "all_gather with gaps": all_gather_with_gaps,
    "all_gather_single": all_gather_single,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "all_to_all, uneven": all_to_all_uneven,
    "all_to_all_single, uneven": all_to_all_single_uneven,
    "all_gather, uneven": all_gather_uneven,
    "rows, coalesced": rows_coalesced,
    "ring": ring,
    "both ways": both_ways,
    "one way": one_way,
}


def run_all(tensors: list[Tensor], folder: Path) -> dict[str, object]:
    """Return the result of each operation, on values that kernels have just made."""
    with torch_world(folder, RANKS) as rank:
        return {name: call(tensors[rank] * 2) for name, call in OPERATIONS.items()}


def on_other_stream(use: Callable[[], object]) -> Any:
    """Return what ``use`` returns, with another current stream on the device.

    The program then waits for that stream.
    """
    memory = this_memory()
    if memory is None:
        return use()
    with memory.on_stream(memory.new_stream()):
        result = use()
        memory.synchronize()
    return result


@contextlib.contextmanager
def held_stream() -> Iterator[None]:
    """Let the current stream of the device begin nothing."""
    memory = this_memory()
    if memory is not None:
        load().cuda.fakegpu_hold(memory.stream, True)
    try:
        yield
    finally:
        if memory is not None:
            load().cuda.fakegpu_hold(memory.stream, False)


@contextlib.contextmanager
def labelled_waits() -> Iterator[None]:
    """Tell the waits apart that Python asks for, which native code makes at one place.

    Each becomes a call site of its own, named after the caller.
    """

    def label(wait: Callable[..., None]) -> Callable[..., None]:
        def labelled(*args: Any) -> None:
            site = load().cuda.fakegpu_site
            site(sys._getframe(1).f_code.co_name.encode())
            try:
                wait(*args)
            finally:
                site(b"")

        return labelled

    with mock.patch.object(CudaStaging, "follow", label(CudaStaging.follow)):
        yield


def overlap(tensors: list[Tensor], folder: Path) -> list[Any]:
    """Return the results of asynchronous calls that several streams use."""
    with torch_world(folder, RANKS) as rank, labelled_waits():
        x = tensors[rank] * 2
        results: list[Any] = []
        # Waited for twice: each wait lets its stream follow.
        shared = x + 1
        reduced = dist.all_reduce(shared, async_op=True)
        assert reduced.wait()
        results.append(shared * 2)
        results.append(on_other_stream(lambda: reduced.wait() and shared * 3))
        # By future.
        futures = []
        for i in range(4):
            one = x + i
            futures.append(dist.all_reduce(one, async_op=True).get_future())
        for future in futures:
            [total] = future.wait()
            results.append(total * 2)
        # A receiver's stream still uses the memory when the message comes.
        received = torch.ones_like(x)
        results.append(received * 5)
        if rank == 0:
            for target in range(1, RANKS):
                dist.send(x, target)
        else:
            receive = dist.irecv(received, 0)
            assert receive is not None
            on_other_stream(receive.wait)
        results.append(received * 2)
        # A receiver waits neither for its stream nor for what it has received before.
        messages = [x + i for i in range(6)]
        if rank == 0:
            for message in messages:
                for target in range(1, RANKS):
                    dist.send(message, target)
        else:
            with held_stream():
                for message in messages:
                    dist.recv(message, 0)
        results += messages
        return results


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator) for _ in range(RANKS)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return {
        body: run_ranks(RANKS, body, inputs(), tmp_path_factory.mktemp("host"))
        for body in (run_all, overlap)
    }


@pytest.mark.parametrize("body", [run_all, overlap])
def test_results_are_those_of_the_host(expected, body, seed, tmp_path):
    found = run_ranks_on_gpus(RANKS, body, inputs(), tmp_path, seed=seed)
    torch.testing.assert_close(found, expected[body], rtol=0, atol=0)


def test_each_wait_is_needed(expected, tmp_path_factory):
    """The backend without one of its waits races, or gives something else."""

    def run(environment):
        folder = tmp_path_factory.mktemp("gpu")
        return run_ranks_on_gpus(
            RANKS, overlap, inputs(), folder, environment=environment
        )

    def check(environment):
        torch.testing.assert_close(run(environment), expected[overlap], rtol=0, atol=0)

    waits = waits_of(run, tmp_path_factory.mktemp("sites") / "sites")
    for label in ("_copy", "_settle"):
        assert any(label in one for one in waits)
    assert not unneeded_waits(check, waits)
