"""Sends and receives between ranks: values, order, tags, sources and failures."""

from __future__ import annotations

import random

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks

TRANSPORTS = ["shm", "tcp"]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def ring_of_values() -> None:
    """Pass tensors of all shapes and types around the ring, in several forms."""
    rank, size = bf.rank(), bf.size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for shape in [(), (0,), (3, 5), (300, 700)]:
        for dtype in DTYPES:
            mine = torch.full(shape, rank + 1).to(dtype)
            theirs = torch.zeros(shape, dtype=dtype)
            handle = bf.send_nonblocking(mine, right)
            assert bf.recv(theirs, left) == left
            assert handle.wait() is None
            assert torch.equal(theirs, torch.full(shape, left + 1).to(dtype))
    shared = bf.shared_empty((1 << 20,))
    shared.fill_(rank)
    columns = torch.zeros(8, 1 << 17).t()  # not contiguous
    got = bf.batch([bf.Recv(columns, left, 9), bf.Send(shared.view(-1, 8), right, 9)])
    assert got == [left, None]
    assert (columns == left).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_values_arrive(transport: str, world_size: int) -> None:
    run_ranks(world_size, ring_of_values, transport=transport)


def shuffled_tags(count: int) -> None:
    """Exchange messages with many tags; each rank lists its calls in another order."""
    rank, size = bf.rank(), bf.size()
    parts: list[bf.Send | bf.Recv] = []
    for peer in range(size):
        for tag in range(count):
            length = 1 + tag % 3 * 2000
            parts.append(bf.Send(torch.full((length,), rank * count + tag), peer, tag))
            expected = torch.zeros(length, dtype=torch.int64)
            parts.append(bf.Recv(expected, peer, tag))
    random.Random(rank).shuffle(parts)
    sources = bf.batch(parts)
    for part, source in zip(parts, sources, strict=True):
        if isinstance(part, bf.Recv):
            assert source == part.src
            assert (part.tensor == part.src * count + part.tag).all()
        else:
            assert source is None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tags_match_in_any_order(transport: str) -> None:
    run_ranks(3, shuffled_tags, 60, transport=transport)


def collect_from_any() -> list[int]:
    """Let rank 0 receive one message of each other rank, without naming it."""
    if bf.rank() > 0:
        bf.send(torch.full((4,), bf.rank()), 0, tag=1)
        return []
    sources = []
    for _ in range(1, bf.size()):
        values = torch.zeros(4, dtype=torch.int64)
        sources.append(bf.recv(values, tag=1))
        assert (values == sources[-1]).all()
    return sources


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_receives_from_any_source(transport: str) -> None:
    sources = run_ranks(4, collect_from_any, transport=transport)[0]
    assert sorted(sources) == [1, 2, 3]


def in_process_sets() -> None:
    """Name peers by their ranks in the world; sets keep messages apart."""
    some = bf.ProcessSet([1, 2])
    if bf.rank() == 0:
        return
    peer = 3 - bf.rank()
    inside = torch.full((2,), float(bf.rank()))
    outside = inside + 10
    bf.send(outside, peer)
    bf.send(inside, peer, process_set=some)
    assert bf.recv(inside, process_set=some) == peer
    assert bf.recv(outside, peer) == peer
    assert inside.tolist() == [peer, peer]
    assert outside.tolist() == [peer + 10, peer + 10]
    with pytest.raises(ValueError, match=r"dst must be one of the ranks \[1, 2\]"):
        bf.send(inside, 0, process_set=some)


def test_process_sets() -> None:
    run_ranks(3, in_process_sets)


def send_or_receive(count: int) -> None:
    """Send ``count`` floats, or receive four integers instead."""
    if bf.rank() == 0:
        bf.send(torch.ones(count), 1)
    else:
        bf.recv(torch.ones(2, 2, dtype=torch.int32), 0)


def meet() -> None:
    """Take part in a call whose result is in memory of the engine."""
    bf.allgather(torch.ones(1, device="cpu"))


def mismatch() -> tuple[str, str, bool]:
    """Return the errors for a large message, and for a small one, which is late.

    The last value tells that a call that raises the late one could make its result.
    """
    with pytest.raises(bf.MismatchError) as large:
        send_or_receive(1 << 20)
    try:
        send_or_receive(3)
        meet()
        meet()  # the first one may precede the news of the failure
    except bf.MismatchError as small:
        if bf.rank() == 1:
            meet()
            meet()
        elif "allgather.noname.0" in str(small):
            meet()
        return str(large.value), str(small), small.__cause__ is None
    raise AssertionError("no error for the small message")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_mismatch_fails_on_both_ranks(transport: str) -> None:
    sender, receiver = run_ranks(2, mismatch, transport=transport)
    assert sender[0] == receiver[0]
    assert "send float32 [1048576] (1048576 elements)" in sender[0]
    assert "recv int32 [2, 2] (4 elements)" in sender[0]
    assert sender[1].endswith(receiver[1])
    assert sender[2]
    assert "was carried out; an earlier operation failed on rank 1" in sender[1]


def timeouts() -> None:
    other = 1 - bf.rank()
    text = rf"recv 'from rank {other}, tag 5' on rank .*: rank {other} .* not sent"
    with pytest.raises(bf.CommunicationTimeout, match=text) as caught:
        bf.recv(torch.ones(1), other, tag=5, timeout_s=0.05)
    assert list(caught.value.peers) == [other]
    with pytest.raises(bf.CommunicationTimeout, match="no rank has sent"):
        bf.recv(torch.ones(1), timeout_s=0.05)
    with pytest.raises(bf.CommunicationTimeout, match="did not receive it"):
        bf.send(torch.ones(1), bf.rank(), timeout_s=0.05)


def bad_arguments() -> None:
    x = torch.ones(2)
    with pytest.raises(ValueError, match="send: dst must be one of the ranks"):
        bf.send(x, 7)
    with pytest.raises(ValueError, match="recv: src must be one of the ranks"):
        bf.recv(x, -1)
    with pytest.raises(ValueError, match="tag must be in 0"):
        bf.send(x, 0, tag=-1)
    with pytest.raises(TypeError, match="tag must be an integer"):
        bf.recv(x, 0, tag=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor"):
        bf.send([1.0], 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="requires grad"):
        bf.recv(x.clone().requires_grad_(), 0)
    with pytest.raises(TypeError, match=r"bluecomm\.Send or bluecomm\.Recv"):
        bf.batch([x])  # type: ignore[list-item]
    handle = bf.send_nonblocking(x.clone().requires_grad_(), bf.rank(), tag=3)
    assert bf.recv(x, bf.rank(), tag=3) == bf.rank()
    handle.wait()


def errors() -> None:
    timeouts()
    bad_arguments()


def test_errors() -> None:
    run_ranks(2, errors)
