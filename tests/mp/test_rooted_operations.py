"""Operations with a root: reduce, gather, scatter; and uneven reducescatter."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from tests.support.oracle import stacked
from tests.support.ranks import run_ranks

TRANSPORTS = ["shm", "tcp"]
SHAPES = [(0,), (3,), (200, 300)]


def reduce_all() -> None:
    rank, size = bf.rank(), bf.size()
    for root in range(size):
        for shape in SHAPES:
            xs = stacked(shape, size, torch.float64)
            for op, expected in [
                (bf.Sum, xs.sum(0)),
                (bf.Average, xs.mean(0)),
                (bf.Max, xs.amax(0)),
            ]:
                got = bf.reduce(xs[rank], root, op)
                if rank == root:
                    torch.testing.assert_close(got, expected)
                else:
                    assert got.shape == (0,)
                    assert got.dtype is torch.float64
    total = bf.reduce_nonblocking(torch.ones(4), 0, bf.Sum, prescale_factor=2.0).wait()
    assert total.tolist() == ([2.0 * size] * 4 if rank == 0 else [])


def gather_all() -> None:
    rank, size = bf.rank(), bf.size()
    for root in range(size):
        for columns in (1, 5000):
            mine = torch.full((2 * rank, columns), rank)
            got = bf.gather(mine, root)
            if rank == root:
                expected = [torch.full((2 * r, columns), r) for r in range(size)]
                assert torch.equal(got, torch.cat(expected))
            else:
                assert got.shape == (0, columns)


def scatter_all() -> None:
    rank, size = bf.rank(), bf.size()
    dtypes = [torch.float32, torch.bool, torch.complex128]
    for root in range(size):
        parts = [
            torch.full((r, 3000), r).to(dtypes[(r + root) % 3]) for r in range(size)
        ]
        got = bf.scatter(parts if rank == root else None, root)
        assert torch.equal(got, parts[rank])
        assert got.dtype is parts[rank].dtype
    scalar = bf.scatter([torch.tensor(4.0)] * size if rank == 0 else None, 0)
    assert scalar.shape == ()
    assert scalar == 4
    expanded = torch.tensor(4.0).expand(1)  # its stride is 0
    assert bf.scatter([expanded] * size if rank == 0 else None, 0).tolist() == [4]


def uneven_reducescatter() -> None:
    rank, size = bf.rank(), bf.size()
    splits = [2 * (r % 2) + r // 2 for r in range(size)]
    xs = stacked((sum(splits), 700), size, torch.float64)
    got = bf.reducescatter(xs[rank], bf.Sum, splits=splits)
    torch.testing.assert_close(got, xs.sum(0).split(splits)[rank])
    with pytest.raises(ValueError, match="splits must be"):
        bf.reducescatter(xs[rank], splits=[1] * (size + 1))


def all_of_them() -> None:
    reduce_all()
    gather_all()
    scatter_all()
    uneven_reducescatter()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_values(transport: str, world_size: int) -> None:
    run_ranks(world_size, all_of_them, transport=transport)


def bad_arguments() -> None:
    x = torch.ones(2)
    with pytest.raises(ValueError, match="reduce: root_rank must be one of"):
        bf.reduce(x, 5)
    with pytest.raises(ValueError, match="gather: root_rank must be one of"):
        bf.gather(x, -1)
    if bf.rank() == 0:
        with pytest.raises(ValueError, match="expected a tensor for each of 2 ranks"):
            bf.scatter([x], 0)
    else:
        with pytest.raises(bf.MismatchError, match="expected a tensor for each of 2"):
            bf.scatter(None, 0)
    with pytest.raises(bf.MismatchError, match="same root rank"):
        bf.gather(x, bf.rank())
    with pytest.raises(bf.MismatchError, match="same root rank"):
        bf.reduce(x, bf.rank())


def test_bad_arguments() -> None:
    run_ranks(2, bad_arguments)


INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
MOVED = [
    *UNSIGNED,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


def bitwise() -> None:
    rank = bf.rank()
    for dtype in [*INTEGERS, *UNSIGNED]:
        mine = torch.tensor([0b1100, 0b1010], dtype=dtype)[rank].expand(5000)
        for op, expected in [(bf.BitAnd, 8), (bf.BitOr, 14), (bf.BitXor, 6)]:
            got = bf.allreduce(mine.contiguous(), op=op)
            assert got.dtype is dtype
            assert (got.to(torch.int64) == expected).all()
    mine = torch.tensor([[True, True, False], [True, False, False]])[rank]
    assert bf.allreduce(mine, op=bf.BitAnd).tolist() == [True, False, False]
    assert bf.allreduce(mine, op=bf.BitXor).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="bit_or is for integers and booleans"):
        bf.allreduce(torch.ones(2), op=bf.BitOr)


def all_types() -> None:
    """Move values of every type, each way; they arrive bit by bit."""
    rank, size = bf.rank(), bf.size()
    for dtype in MOVED:
        xs = [torch.full((4, 5000), r + 1.0).to(dtype) for r in range(size)]
        bits = [x.view(torch.uint8) for x in xs]
        mine = xs[rank]
        moved = [
            (bf.allgather(mine), torch.cat(bits)),
            (bf.broadcast(mine, 1), bits[1]),
            (bf.alltoall(mine), torch.cat([b[:2] for b in bits])),
            (bf.scatter(xs if rank == 0 else None, 0), bits[rank]),
        ]
        gathered = bf.gather(mine, 0)
        if rank == 0:
            moved.append((gathered, torch.cat(bits)))
        theirs = torch.empty_like(mine)
        bf.batch([bf.Send(mine, 1 - rank), bf.Recv(theirs, 1 - rank)])
        moved.append((theirs, bits[1 - rank]))
        for got, expected in moved:
            assert got.dtype is dtype
            assert torch.equal(got.view(torch.uint8), expected)


def arithmetic() -> None:
    rank = bf.rank()
    for dtype in (torch.complex64, torch.complex128):
        x = torch.tensor([1 + 2j, 3j - 1], dtype=dtype) * (rank + 1)
        assert bf.allreduce(x, op=bf.Sum).tolist() == [3 + 6j, -3 + 9j]
        assert bf.allreduce(x.conj()).tolist() == [1.5 - 3j, -1.5 - 4.5j]
        assert bf.reducescatter(x, bf.Sum).tolist() == [[3 + 6j], [-3 + 9j]][rank]
        for op in (bf.Product, bf.Max):
            with pytest.raises(ValueError, match="complex numbers have only"):
                bf.allreduce(x, op=op)
    for dtype in UNSIGNED:
        x = torch.tensor([1, torch.iinfo(dtype).max], dtype=dtype)[rank].reshape(1)
        assert bf.allreduce(x, op=bf.Sum).item() == 0
        assert bf.allreduce(x, op=bf.Max).item() == torch.iinfo(dtype).max
        assert bf.allreduce(x, op=bf.Min).item() == 1
    with pytest.raises(TypeError, match="float8_e5m2 are not supported"):
        bf.allreduce(torch.ones(2).to(torch.float8_e5m2))
    x = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    bf.allreduce(x, op=bf.Sum).abs().sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def types() -> None:
    bitwise()
    all_types()
    arithmetic()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_types(transport: str) -> None:
    run_ranks(2, types, transport=transport)
