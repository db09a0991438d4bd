"""Operations on the fake's tensors: with seeds, and without each wait in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import MinMaxUInt8
from tests.support.errors import error_text
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
RANKS = 3

OPERATIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "allreduce": lambda x: bf.allreduce(x),
    "allreduce_": lambda x: bf.allreduce_(x.clone()),
    "allreduce, fp16": lambda x: bf.allreduce(x, compression=bf.Compression.fp16),
    "codes": lambda x: bf.compressed_allreduce(x, MinMaxUInt8()),
    "adasum": lambda x: bf.allreduce(x, op=bf.Adasum),
    "broadcast": lambda x: bf.broadcast(x, 1),
    "broadcast_": lambda x: bf.broadcast_(x.clone(), 1),
    "reduce": lambda x: bf.reduce(x, 1, bf.Max),
    "reducescatter": lambda x: bf.reducescatter(x),
    "allgather": lambda x: bf.allgather(x[: bf.rank()]),
    "gather": lambda x: bf.gather(x[bf.rank() :], 0),
    "alltoall": lambda x: bf.alltoall(x[: 2 * bf.size()]),
    "neighbor_allreduce": lambda x: bf.neighbor_allreduce(x),
    "neighbor_allreduce_": lambda x: bf.neighbor_allreduce_(x.clone()),
    "neighbor_allgather": lambda x: bf.neighbor_allgather(x),
    "scatter": lambda x: scattered(x, 1),
    "scatter, at the root": lambda x: bf.scatter(
        [x, x[:1], x[:0]] if bf.rank() == 0 else None, 0
    ),
    "hierarchical": lambda x: bf.hierarchical_neighbor_allreduce(x),
    "grouped": lambda x: bf.grouped_allreduce([x, x[:1]], op=bf.Sum),
    "not contiguous": lambda x: bf.allreduce_(x.clone().t()),
    "no elements": lambda x: bf.allreduce(x[:0]),
    "sparse": lambda x: sparse_sum(x),
}


def run_all(tensors: list[torch.Tensor]) -> dict[str, object]:
    """Return the result of each operation, on values that kernels have just made."""
    x = tensors[bf.rank()]
    return {name: operation(x * 2) for name, operation in OPERATIONS.items()}


def scattered(x: torch.Tensor, root: int) -> torch.Tensor:
    """Return this rank's part of the root's tensor, where ``x`` is."""
    parts = [x[number : number + 2] for number in range(RANKS)]
    given = parts if bf.rank() == root else None
    return bf.scatter(given, root, out=torch.empty_like(parts[0]))


def sparse_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of sparse tensors, which must be where ``x`` is."""
    total = bf.sparse_allreduce(x.to_sparse(1), op=bf.Sum)
    memory = this_memory()
    assert memory is None or memory.holds(total)
    return total.to_dense()


def exchange(messages: list[torch.Tensor]) -> None:
    """Send messages of rank 0 to all others."""
    for message in messages:
        if bf.rank() == 0:
            for receiver in range(1, bf.size()):
                bf.send(message, receiver)
        else:
            bf.recv(message, 0)


def overlap(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of operations that run while the program goes on.

    The program drops its tensors before their operations have ended.
    """
    x = tensors[bf.rank()] * 2
    handles = [
        bf.allreduce_nonblocking(x + i, op=bf.Sum, name=f"part {i}") for i in range(8)
    ]
    results = [handle.wait() * 2 for handle in handles]
    for _ in range(4):
        bf.allreduce_(x)
        x += 1
    messages = [x + i for i in range(6)]
    exchange(messages)
    first = [message * 1 for message in messages]
    # A receiver waits neither for its stream nor for what it has received before, so it
    # is ahead of its device if the sender does not wait for a device, either.
    exchange([message.cpu() for message in messages] if bf.rank() == 0 else messages)
    return [*results, x, *first, *messages]


def large(_: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return results of tensors that are copied to the host in several parts."""
    x = torch.arange(2_500_003, dtype=torch.float32) / (3 + bf.rank())
    handles = [
        bf.compressed_allreduce_nonblocking(torch.cat([x, x * 7]), MinMaxUInt8()),
        bf.allreduce_nonblocking(x * 2),
        bf.neighbor_allreduce_nonblocking(x * 3),
        bf.broadcast_nonblocking(x * 5, 1),
        bf.scatter_nonblocking(
            [x * factor for factor in (7, 11, 13)] if bf.rank() == 1 else None,
            1,
            out=torch.empty_like(x),
        ),
    ]
    return [handle.wait()[::1000] for handle in handles]


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator) for _ in range(RANKS)]


@pytest.fixture(scope="module")
def expected():
    return {body: run_ranks(RANKS, body, inputs()) for body in (run_all, overlap)}


@pytest.mark.parametrize("body", [run_all, overlap])
def test_results_are_those_of_the_host(expected, body, seed):
    found = run_ranks_on_gpus(RANKS, body, inputs(), seed=seed)
    torch.testing.assert_close(found, expected[body], rtol=0, atol=0)


def late(tensors: list[torch.Tensor]) -> tuple[str, torch.Tensor]:
    """Return the error of codes that rank 1 cannot make in time, and a later result."""
    x = tensors[bf.rank()] * 2
    is_late = bf.rank() == 1
    memory = this_memory()
    if is_late:
        load().cuda.fakegpu_hold(memory.current_stream, True)
    text = "has not finished within"
    with pytest.raises(bf.CommunicationTimeout, match=text) as raised:
        bf.compressed_allreduce(x, MinMaxUInt8(), timeout_s=0.01 if is_late else None)
    if is_late:
        load().cuda.fakegpu_hold(memory.current_stream, False)
    return str(raised.value), bf.compressed_allreduce(x, MinMaxUInt8())


def test_a_device_that_is_late_fails_codes_on_all_ranks(expected):
    found = run_ranks_on_gpus(RANKS, late, inputs())
    for (error, later), results in zip(found, expected[run_all], strict=True):
        assert "compressed_allreduce" in error
        torch.testing.assert_close(later, results["codes"], rtol=0, atol=0)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_parts_of_large_tensors_give_the_results_of_the_host(transport):
    environment = {"BLUECOMM_TRANSPORT": transport}
    found = run_ranks_on_gpus(RANKS, large, inputs(), environment=environment)
    host = run_ranks(RANKS, large, inputs(), environment=environment)
    torch.testing.assert_close(found, host, rtol=0, atol=0)


def fail_to_send(fault: str) -> str:
    """Let the copy of a message fail on rank 0; return what each rank is told."""
    x = torch.full((2,), 7.0)
    if bf.rank() == 0:
        set_fake(FAIL=fault)
        text = error_text(lambda: bf.send(x, 1))
        set_fake(FAIL="")
        bf.send(x, 1)
        return text
    text = error_text(lambda: bf.recv(torch.empty(5), 0))
    bf.recv(x.zero_(), 0)
    assert x.tolist() == [7.0] * 2
    return text


SENDING = "BluecommError: send 'to rank 1, tag 0' on rank 0: "


def test_a_message_that_fails_on_its_device_fails_its_receive():
    """A wait for the deadline, or the next message in its place, fails the test."""
    sent, received = run_ranks_on_gpus(2, fail_to_send, "cuEventQuery:1=700")
    assert sent.startswith(SENDING)
    assert "CUDA" in sent
    assert received == sent


def test_a_message_whose_copy_cannot_be_started_fails_its_receive():
    fault = "cuMemcpyDtoHAsync:1=2"
    sent, received = run_ranks_on_gpus(2, fail_to_send, fault)
    assert sent.startswith("RuntimeError: ")
    assert "cuMemcpyDtoHAsync" in sent
    assert received == SENDING + sent


def sum_in_a_graph() -> str:
    """Return what each rank is told if a graph of rank 0 captures a sparse sum."""
    x = torch.eye(3).to_sparse()
    captures = bf.rank() == 0
    with this_memory().capturing() if captures else contextlib.nullcontext():
        text = error_text(lambda: bf.sparse_allreduce(x, "x"))
    assert bf.sparse_allreduce(x).values().tolist() == [1.0] * 3
    return text


def test_graphs_cannot_capture_sparse_sums():
    for text in run_ranks_on_gpus(2, sum_in_a_graph):
        assert "captures a CUDA graph" in text


def test_each_wait_is_needed(expected, tmp_path):
    """The backend without one of its waits races, or gives something else."""

    def run(environment):
        return run_ranks_on_gpus(RANKS, overlap, inputs(), environment=environment)

    def check(environment):
        found = run(environment)
        torch.testing.assert_close(found, expected[overlap], rtol=0, atol=0)

    waits = waits_of(run, tmp_path / "sites")
    assert any("cuStreamWaitEvent" in one for one in waits)
    assert any("cuEventQuery" in one for one in waits)
    assert not unneeded_waits(check, waits)
