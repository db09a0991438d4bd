"""``QAdam`` on its own; tests/mp/test_optim_qadam.py has the exchange."""

import copy

import pytest
import torch

import bluecomm as bf
from bluecomm.optim import QAdam
from bluecomm.optim.second_moment import is_updated_in


def parameter_with(gradient):
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    parameter.grad = torch.tensor(gradient)
    return parameter


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_warmup_is_adam(decoupled):
    options = {"weight_decay": 0.1, "decoupled_weight_decay": decoupled}
    mine, theirs = parameter_with([0.0] * 3), parameter_with([0.0] * 3)
    optimizer = QAdam([mine], 0.1, 4, **options)
    adam = torch.optim.Adam([theirs], 0.1, **options)
    for step in range(4):
        for each in (mine, theirs):
            each.grad = torch.tensor([1.0, -2.0, 0.5]) * (step + 1)
        assert optimizer.in_warmup
        optimizer.step()
        adam.step()
        torch.testing.assert_close(mine, theirs)
    assert not optimizer.in_warmup


def test_the_rate_does_not_grow_after_the_warmup():
    """With a constant gradient Adam's steps have the size of the rate."""
    parameter = parameter_with([1.0, -2.0, 0.5])
    optimizer = QAdam([parameter], 0.1, 2)
    for _ in range(50):
        before = parameter.detach().clone()
        loss = optimizer.step(lambda: torch.tensor(7.0))
        assert loss == 7.0
        step = (parameter.detach() - before).abs()
        torch.testing.assert_close(step, torch.full((3,), 0.1))


def test_elements_without_a_gradient_in_the_warmup():
    some, none = parameter_with([3.0, 0.0, 0.0]), parameter_with([0.0] * 3)
    optimizer = QAdam([some, none], 0.1, 2)
    for _ in range(2):
        optimizer.step()
    for parameter in (some, none):
        second = optimizer.state[parameter]["exp_avg_sq"]
        torch.testing.assert_close(second, torch.full((3,), 9.0))
    kept = some.detach().clone()
    some.grad, none.grad = torch.tensor([0.0, 3.0, 0.0]), torch.ones(3)
    optimizer.step()
    # The step of a gradient of the usual size.
    assert 0 < kept[1] - some[1] < 0.1
    assert 0 < 1 - none[0] < 0.1


def test_intervals_between_updates_double():
    for doubling in (1, 2, 3, 16):
        updates, step = [0], 0
        while step < 300:
            # Update j is the last one.
            step += 2 ** ((len(updates)) // doubling)
            updates.append(step)
        found = [step for step in range(300) if is_updated_in(step, doubling)]
        assert found == [one for one in updates if one < 300]


def test_rare_updates_of_the_second_moment():
    """The bias is that of the updates: a constant gradient gives steps of the rate."""
    some, late = parameter_with([1.0, -2.0, 0.0]), parameter_with([0.0] * 3)
    late.grad = None
    optimizer = QAdam([some, late], 0.1, 6, updates_per_doubling=2)
    updated = []
    for step in range(7):
        updated.append(optimizer.updates_second_moment)
        if step == 2:  # without an update
            late.grad = torch.ones(3)
            some.grad[2] = 1.0
        kept = [parameter.detach().clone() for parameter in (some, late)]
        optimizer.step()
        moved = [
            (parameter.detach() - before).abs()
            for parameter, before in zip((some, late), kept, strict=True)
        ]
        torch.testing.assert_close(moved[0][:2], torch.full((2,), 0.1))
        if step == 2:  # Elements without a second moment wait for one.
            assert moved[0][2] == 0
            assert not moved[1].any()
        # Adam's bound, and one more step with the momentum of an update.
        assert max(float(one.max()) for one in moved) < 0.1 * 3.2
    assert updated == [True, True, False, True, False, True, False]
    state = optimizer.state_dict()["state"]
    assert [state[k]["second_moment_updates"] for k in (0, 1)] == [4, 2]
    assert [float(state[k]["step"]) for k in (0, 1)] == [7, 5]


def test_states():
    """A state of Adam is followed by a whole warm-up, one of QAdam by the rest."""
    parameter = parameter_with([1.0, 2.0, 3.0])
    adam = torch.optim.Adam([parameter], 0.1)
    adam.step()
    optimizer = QAdam([parameter], warmup_steps=2)
    optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    optimizer.step()
    assert optimizer.in_warmup
    optimizer.step()
    assert not optimizer.in_warmup
    assert float(optimizer.state[parameter]["step"]) == 3
    assert not copy.deepcopy(optimizer).in_warmup
    adam = torch.optim.Adam([parameter], amsgrad=True)
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match="optimizer with amsgrad=True, which QAdam"):
        optimizer.load_state_dict(adam.state_dict())
    assert optimizer.state_dict() == before


def test_wrong_options_and_gradients():
    for options, error, text in (
        ({"warmup_steps": 0}, ValueError, "warmup_steps must be at least 1, got 0"),
        ({"warmup_steps": 1.5}, TypeError, "warmup_steps must be an integer, got 1.5"),
        ({"updates_per_doubling": 0}, ValueError, "updates_per_doubling must be at"),
        ({"updates_per_doubling": 0.5}, TypeError, "updates_per_doubling must be an"),
        ({"betas": (0.9, 1.0)}, ValueError, "betas must be from 0 to less than 1"),
        ({"lr": -1.0}, ValueError, "lr must be at least 0 and finite, got -1.0"),
        ({"eps": float("inf")}, ValueError, "eps must be at least 0 and finite"),
    ):
        with pytest.raises(error, match=text):
            QAdam([parameter_with([0.0] * 3)], **options)
    first, late = parameter_with([1.0] * 3), parameter_with([1.0] * 3)
    late.grad = None
    optimizer = QAdam([first], warmup_steps=1)
    with pytest.raises(ValueError, match="the same warmup_steps, got 1 and 2"):
        optimizer.add_param_group({"params": [late], "warmup_steps": 2})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [late]})
    optimizer.step()
    late.grad = torch.ones(3)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(
        ValueError, match=r"shape \(3,\) has its first gradient in step 2"
    ):
        optimizer.step()
    # The first parameter has taken no step either.
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)
    table = torch.nn.Parameter(torch.ones(3, 2))
    table.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(RuntimeError, match=r"shape \(3, 2\) is sparse; make the layer"):
        QAdam([table]).step()


def test_it_is_not_fused():
    """Else an element without a gradient would take the mean of other parameters."""
    optimizer = QAdam([parameter_with([1.0] * 3)])
    with pytest.raises(ValueError, match="fused: after the warm-up, elements that"):
        bf.fuse_optimizer(optimizer)
