"""Sparse allreduce against the dense one."""

import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def sparse_of(rank, shape, dims, dtype, count):
    """Return an uncoalesced tensor with ``count`` entries, some at one position."""
    generator = torch.Generator().manual_seed(rank)
    indices = torch.stack(
        [torch.randint(size, (count,), generator=generator) for size in shape[:dims]]
    )
    values = torch.randn(count, *shape[dims:], generator=generator).mul(4).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def reduce_all():
    me, n = bf.rank(), bf.size()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for shape, dims in [((7,), 1), ((4, 3), 1), ((5, 2, 3), 2), ((3, 2), 2)]:
            # Rank 0 has no entry at all.
            each = [sparse_of(r, shape, dims, dtype, 6 * r) for r in range(n)]
            before = each[me].clone()
            total = sum(tensor.to_dense().double() for tensor in each)
            got = bf.sparse_allreduce(each[me], op=bf.Sum)
            assert (got.layout, got.dtype) == (torch.sparse_coo, dtype)
            assert got.is_coalesced()
            assert got.sparse_dim() == dims
            rtol = 2**-7 if dtype is torch.bfloat16 else 1e-6
            torch.testing.assert_close(
                got.to_dense().double(), total, rtol=rtol, atol=1e-6 + rtol
            )
            if dtype.is_floating_point:
                handle = bf.sparse_allreduce_async(each[me], "mean", bf.Average)
                mean = bf.synchronize(handle).to_dense().double()
                torch.testing.assert_close(mean, total / n, rtol=rtol, atol=1e-6 + rtol)
            assert torch.equal(each[me].to_dense(), before.to_dense())
    x = torch.tensor([0.0, 1.0 + me]).to_sparse()
    started = [bf.sparse_allreduce_async(x, str(number)) for number in range(20)]
    expected = bf.allreduce(x.to_dense())
    for handle in started:
        assert torch.equal(handle().to_dense(), expected)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_equals_the_dense_sum(world_size):
    run_ranks(world_size, reduce_all)


def reduce_in_a_set():
    members = bf.ProcessSet([0, 2])
    if members.included:
        x = torch.tensor([1.0 * bf.rank(), 0.0]).to_sparse()
        mean = bf.sparse_allreduce_async(x, "x", bf.Average, members)()
        assert mean.to_dense().tolist() == [1.0, 0.0]


def test_takes_a_process_set():
    run_ranks(3, reduce_in_a_set)


def disagree():
    for tensor in (
        torch.eye(3 + bf.rank()).to_sparse(),
        torch.eye(3).to_sparse(1 + bf.rank()),
    ):
        with pytest.raises(
            bf.MismatchError, match=r"'x' on rank \d: ranks 0 and 1 .*same shape"
        ):
            bf.sparse_allreduce(tensor, "x")
    with pytest.raises(bf.MismatchError, match=r"x\.values"):
        bf.sparse_allreduce(
            torch.eye(3, dtype=[torch.float, torch.double][bf.rank()]).to_sparse(), "x"
        )


def test_different_kinds_are_errors():
    run_ranks(2, disagree)


def misuse():
    with pytest.raises(TypeError, match=r"expected a sparse COO.*use allreduce"):
        bf.sparse_allreduce(torch.eye(3))
    with pytest.raises(TypeError, match=r"sparse_csr; use allreduce .*to_sparse\(\)"):
        bf.sparse_allreduce(torch.eye(3).to_sparse_csr())
    with pytest.raises(ValueError, match=r"op must be bluecomm\.Average or Sum"):
        bf.sparse_allreduce(torch.eye(3).to_sparse(), op=bf.Max)
    with pytest.raises(ValueError, match="at least one sparse dimension"):
        bf.sparse_allreduce(torch.ones(()).to_sparse())
    with pytest.raises(ValueError, match="cannot average tensors of type"):
        bf.sparse_allreduce(torch.eye(3).long().to_sparse())


def test_misuse():
    run_ranks(1, misuse)


def differentiate(op):
    """Return this rank's gradient of the sum of all ranks' losses, and the result."""
    weights = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    x = sparse_of(bf.rank(), (4, 3), 1, torch.float64, 1 + 2 * bf.rank()).coalesce()
    x.requires_grad_(True)
    y = bf.sparse_allreduce(x, "x", op)
    (y.to_dense().square() * weights * (1 + bf.rank())).sum().backward()
    return x.grad.to_dense(), y.detach().to_dense()


@pytest.mark.parametrize("op", [bf.Sum, bf.Average])
def test_gradients(op):
    weights = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    for rank, (got, y) in enumerate(run_ranks(3, differentiate, op)):
        factor = 6 if op is bf.Sum else 6 / 3
        x = sparse_of(rank, (4, 3), 1, torch.float64, 1 + 2 * rank).to_dense()
        at = (x.abs().sum(1, keepdim=True) > 0).double()
        torch.testing.assert_close(got, 2 * y * weights * factor * at)
