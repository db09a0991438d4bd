import pytest
import torch
from torch import nn

from bluecomm.ops.tensor import is_dense
from bluecomm.optim.buckets.bucket import build_buckets


def bucket_of(*tensors):
    named = [(f"p{number}", nn.Parameter(t)) for number, t in enumerate(tensors)]
    (bucket,) = build_buckets(named, prefix="b", bucket_nbytes=1 << 20)
    return bucket, [parameter for _, parameter in named]


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 4).T, True),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (torch.zeros(()), True),
        (torch.zeros(0, 3), True),
        (torch.zeros(4, 4)[:, :2], False),
        (torch.zeros(3, 1).expand(3, 4), False),
        (torch.zeros(8)[::2], False),
    ],
)
def test_is_dense(tensor, dense):
    assert is_dense(tensor) == dense


def test_parameters_keep_values_and_strides():
    given = [
        torch.randn(3, 4),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 4)[:, :2],
        torch.randn(()),
        torch.randn(0, 3),
    ]
    bucket, parameters = bucket_of(*given)
    bucket.lay_out_parameters()
    for parameter, tensor in zip(parameters, given, strict=True):
        assert torch.equal(parameter, tensor)
    assert parameters[1].is_contiguous(memory_format=torch.channels_last)
    assert parameters[2].is_contiguous()
    bucket.parameters.current.fill_(7.0)
    assert all((parameter == 7.0).all() for parameter in parameters)


def test_an_exchange_swaps_the_halves():
    bucket, (first, second) = bucket_of(torch.ones(3), torch.ones(2))
    bucket.lay_out_parameters()
    views = bucket.parameters
    views.lend()
    views.next.fill_(5.0)
    assert views.exchange() == []
    assert first.tolist() == [5.0] * 3
    assert second.tolist() == [5.0] * 2
    views.current.fill_(6.0)
    assert first.tolist() == [6.0] * 3


def test_replaced_memory_is_copied_in():
    bucket, (first, second) = bucket_of(torch.ones(3), torch.ones(2))
    bucket.lay_out_parameters()
    assert bucket.parameters.check() == []
    second.data = torch.full((2,), 4.0)
    assert bucket.parameters.check() == ["p1"]
    assert bucket.parameters.check() == []
    bucket.parameters.current.mul_(2)
    assert second.tolist() == [8.0, 8.0]
    assert first.tolist() == [2.0, 2.0, 2.0]


def test_replaced_memory_overrides_an_exchange():
    bucket, (first, second) = bucket_of(torch.ones(3), torch.ones(2))
    bucket.lay_out_parameters()
    bucket.parameters.lend()
    bucket.parameters.next.fill_(5.0)
    second.data = torch.full((2,), 4.0)
    assert bucket.parameters.exchange() == ["p1"]
    assert first.tolist() == [5.0] * 3
    assert second.tolist() == [4.0, 4.0]


@pytest.mark.parametrize(
    "data", [torch.ones(3, dtype=torch.float64), torch.ones(4), torch.ones(1, 3)]
)
def test_other_kinds_of_data_are_errors(data):
    bucket, (parameter,) = bucket_of(torch.ones(3))
    bucket.lay_out_parameters()
    parameter.data = data
    with pytest.raises(RuntimeError, match=r"'p0' was torch.float32 of shape \(3,\)"):
        bucket.parameters.check()


def test_gradients_that_were_moved_come_back():
    bucket, (parameter,) = bucket_of(torch.ones(3))
    bucket.lay_out_gradients()
    parameter.grad = torch.ones(3)
    bucket.gradients.fill()
    parameter.grad.data = torch.full((3,), 4.0)  # as model.to() does
    bucket.gradients.fill()
    assert bucket.gradients.values[:3].tolist() == [4.0] * 3
    bucket.gradients.values.mul_(2)
    assert parameter.grad.tolist() == [8.0] * 3
    parameter.grad.data = torch.zeros(3)
    bucket.gradients.hand_out()
    assert parameter.grad.tolist() == [8.0] * 3


@pytest.mark.parametrize("has_gradient", [True, False])
def test_gradients_of_other_kinds_are_errors(has_gradient):
    model = nn.Linear(3, 1, bias=False)
    (bucket,) = build_buckets(
        list(model.named_parameters()), prefix="b", bucket_nbytes=1 << 20
    )
    bucket.lay_out_gradients()
    model(torch.ones(1, 3)).sum().backward()
    bucket.gradients.fill()
    if not has_gradient:
        model.zero_grad()
    model.double()
    model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    with pytest.raises(RuntimeError, match=r"'weight' was torch.float32 .* and is tor"):
        bucket.gradients.fill()


def test_changes_while_lent_are_errors():
    bucket, (parameter,) = bucket_of(torch.ones(3))
    bucket.lay_out_parameters()
    bucket.parameters.lend()
    with torch.no_grad():
        parameter.add_(1)
    with pytest.raises(RuntimeError, match=r"'p0' was changed.*synchronize\(\)"):
        bucket.parameters.exchange()


def test_gradients_become_views_with_flags():
    bucket, (first, second, third) = bucket_of(*(torch.ones(2) for _ in range(3)))
    bucket.lay_out_gradients(counters=1)
    gradients = bucket.gradients
    gradients.flat.fill_(9.0)
    first.grad = torch.full((2,), 1.0)
    third.grad = torch.sparse_coo_tensor([[1]], [3.0], (2,), check_invariants=True)
    gradients.fill()
    # The last parameter comes first.
    assert gradients.flags.tolist() == [1.0, 0.0, 1.0]
    assert gradients.values[:2].tolist() == [0.0, 3.0]
    assert gradients.values[16:18].tolist() == [0.0, 0.0]
    gradients.values.mul_(2)
    assert first.grad.tolist() == [2.0, 2.0]
    assert third.grad.tolist() == [0.0, 6.0]
    assert second.grad is None
    gradients.flags.copy_(torch.tensor([0.0, 0.25, 1.0]))
    gradients.hand_out()
    assert third.grad is None
    assert second.grad is not None
    gradients.clear()
    assert not gradients.flat.any()


def test_sparse_gradients_stay_apart():
    bucket, (first, second, third) = bucket_of(*(torch.ones(2) for _ in range(3)))
    sparse = torch.sparse_coo_tensor([[1]], [3.0], (2,), check_invariants=True)
    # The last parameter comes first.
    bucket.lay_out_gradients(counters=1, sparse=[0])
    gradients = bucket.gradients
    assert gradients.lengths == [16, 16]
    gradients.flat.fill_(9.0)
    first.grad, second.grad, third.grad = torch.ones(2), sparse, sparse
    gradients.fill()
    assert gradients.flags.tolist() == [1.0, 1.0, 1.0]
    assert gradients.sparse_flags.tolist() == [1.0, 1.0, 0.0]
    assert gradients.found_sparse() == [1]
    assert gradients.values[:2].tolist() == [0.0, 0.0]
    gradients.hand_out()
    assert first.grad.tolist() == [1.0, 1.0]
    assert second.grad is sparse
    assert third.grad is sparse
