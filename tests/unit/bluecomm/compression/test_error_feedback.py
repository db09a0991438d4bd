"""``ErrorFeedback`` beside its recursion."""

import math

import pytest
import torch

from bluecomm.compression import ChunkedTopK, ErrorFeedback, HalfCast, RandomK, TopK
from tests.unit.bluecomm.compression.encoding import decoded, encoded


def sent_by(feedback, codec, name, values):
    """Return what others decode."""
    code = torch.empty(codec.encoded_nbytes(values.numel(), values.dtype)).byte()
    assert feedback.encode(codec, name, values, code)
    return decoded(codec, code, values.numel(), values.dtype)


@pytest.mark.parametrize("decay", [0.0, 0.95, 1.0])
def test_each_call_follows_the_recursion(decay):
    torch.manual_seed(1)
    feedback, residual = ErrorFeedback(decay), torch.zeros(5000)
    for step in range(6):
        codec = RandomK(100).at_round(step) if step % 2 else ChunkedTopK(8)
        values = torch.randn(5000)
        total = torch.add(values, residual, alpha=decay)
        expected = decoded(codec, encoded(codec, total)[0], 5000)
        before = values.clone()
        assert torch.equal(sent_by(feedback, codec, "w", values), expected)
        assert torch.equal(values, before)
        residual = total - expected
        assert torch.equal(feedback.state_dict()["w"], residual)


def test_all_values_are_sent_in_the_end():
    feedback, codec = ErrorFeedback(), TopK(1)
    values = torch.tensor([8.0, 1.0, 2.0, 4.0])
    total = sum(sent_by(feedback, codec, "w", values) for _ in range(20))
    assert torch.equal(total + feedback.state_dict()["w"], 20 * values)
    assert (total > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_residuals_of_half_types_are_not_rounded(dtype):
    # Each value is less than half of the last bit of 1.
    values = torch.tensor([1.0, 2.0**-14], dtype=dtype)
    feedback, codec = ErrorFeedback(), TopK(1)
    for step in range(1, 4):
        assert sent_by(feedback, codec, "w", values).tolist() == [1.0, 0.0]
        residual = feedback.state_dict()["w"]
        assert residual.dtype == torch.float32
        assert residual.tolist() == [0.0, step * 2.0**-14]


def test_residuals_of_float64_are_float64():
    values = torch.tensor([1.0 + 2.0**-40], dtype=torch.float64)
    feedback = ErrorFeedback()
    assert sent_by(feedback, HalfCast(), "w", values).tolist() == [1.0]
    assert feedback.state_dict()["w"].tolist() == [2.0**-40]


def test_values_that_are_not_finite_leave_the_residual():
    feedback, codec = ErrorFeedback(), TopK(1)
    sent_by(feedback, codec, "w", torch.tensor([3.0, 1.0]))
    code = torch.empty(8, dtype=torch.uint8)
    assert not feedback.encode(codec, "w", torch.tensor([math.nan, 1.0]), code)
    assert decoded(codec, code, 2).isnan().all()
    assert feedback.state_dict()["w"].tolist() == [0.0, 1.0]


def test_a_sum_that_the_type_cannot_hold_leaves_the_residual():
    feedback, codec = ErrorFeedback(), TopK(1)
    values = torch.tensor([60000.0, 40000.0], dtype=torch.float16)
    sent_by(feedback, codec, "w", values)
    code = torch.empty(6, dtype=torch.uint8)
    assert not feedback.encode(codec, "w", values, code)
    assert feedback.state_dict()["w"].tolist() == [0.0, 40000.0]
    assert sent_by(feedback, codec, "w", values / 2).tolist() == [0.0, 60000.0]


def test_tensors_have_residuals_of_their_own_which_a_checkpoint_restores():
    codec, values = TopK(1), torch.tensor([3.0, 2.0])
    first, second = ErrorFeedback(), ErrorFeedback()
    sent_by(first, codec, "a", values)
    sent_by(first, codec, "b", -values)
    state = first.state_dict()
    assert {name: one.tolist() for name, one in state.items()} == {
        "a": [0.0, 2.0],
        "b": [0.0, -2.0],
    }
    second.load_state_dict(state)
    state["a"].zero_()
    for name in ("a", "b"):
        assert torch.equal(
            sent_by(first, codec, name, values), sent_by(second, codec, name, values)
        )
    second.load_state_dict({})
    assert second.state_dict() == {}


def test_bad_arguments_are_refused():
    for decay in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="decay must be from 0 to 1, got"):
            ErrorFeedback(decay)
    feedback, codec = ErrorFeedback(), TopK(1)
    code = torch.empty(8, dtype=torch.uint8)
    with pytest.raises(TypeError, match="takes values of type"):
        feedback.encode(codec, "w", torch.ones(2, dtype=torch.int64), code)
    with pytest.raises(ValueError, match="the values as a flat tensor"):
        feedback.encode(codec, "w", torch.ones(2, 1), code)
    assert feedback.state_dict() == {}
    feedback.encode(codec, "w", torch.ones(2), code)
    with pytest.raises(
        ValueError, match=r"'w' had the shape \(2,\) before, got \(3,\)"
    ):
        feedback.encode(codec, "w", torch.ones(3), code)
