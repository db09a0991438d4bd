"""State dicts, worlds and parameters of a distributed optimizer."""

import io
import itertools
import re

import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.training import (
    OPTIMIZERS,
    ORDERS,
    RANKS,
    STEPS,
    UNIFORM,
    backward,
    check,
    expected_averaging,
    flatten,
    make_batch,
    make_model,
    train,
    wrap,
)

pytestmark = pytest.mark.mp


def resume(which, options):
    """Train 5 steps at once; then 2, save, load into new objects, and 3 more."""
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "adamw", which, **source_of(options))
    train(model, optimizer, range(5))
    optimizer.synchronize()
    uninterrupted = flatten(model)

    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "adamw", which, **source_of(options))
    train(model, optimizer, range(2))
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)

    file.seek(0)
    states = torch.load(file)
    model = make_model("mlp", 77)
    optimizer = wrap(model, "adamw", which, **source_of(options))
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    train(model, optimizer, range(2, 5))
    optimizer.synchronize()
    return torch.stack([uninterrupted, flatten(model)])


def source_of(options):
    """Replace the word ``iterator`` by a fresh iterator."""
    if options.get("topology") == "iterator":
        topology = bf.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())
        return {**options, "topology": topology}
    return options


@pytest.mark.parametrize(
    ("which", "options"),
    [
        ("gradients", {}),
        ("gradients", {"algorithm": "bytegrad"}),
        *itertools.product(
            ORDERS,
            [
                {},
                {"topology": "one_peer"},
                {"topology": "iterator"},
                {"num_steps_per_communication": 2},
            ],
        ),
    ],
)
def test_resumed_equals_uninterrupted(which, options):
    for uninterrupted, resumed in run_ranks(RANKS, resume, which, options):
        assert torch.equal(uninterrupted, resumed)


def load_by_assignment():
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", "atc")
    train(model, optimizer, range(2))
    parameters = list(model.parameters())
    start = make_model("mlp", bf.rank())
    model.load_state_dict(start.state_dict(), assign=True)
    train(model, optimizer, range(STEPS))
    optimizer.synchronize()
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    return flatten(model)


def test_load_state_dict_by_assignment():
    got = run_ranks(RANKS, load_by_assignment)
    check(got, expected_averaging(RANKS, "mlp", "sgd", "atc", [UNIFORM] * STEPS))


@pytest.mark.parametrize("order", ORDERS)
def test_replaced_memory_is_copied_in(order):
    got = run_ranks(RANKS, train_after_replacing_data, order)
    check(got, expected_averaging(RANKS, "mlp", "sgd", order, [UNIFORM] * STEPS))


def train_after_replacing_data(order):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", order)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        if step == 1 and order == "atc":
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
        optimizer.step()
        if step == 1 and order == "cta":
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
    optimizer.synchronize()
    return flatten(model)


def save_one_parameter():
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 1))
    optimizer = wrap(model, "sgd", "atc")
    train_linear(model, optimizer)
    sizes = []
    for state in (model[1].state_dict(), {"bias": model.state_dict()["1.bias"]}):
        file = io.BytesIO()
        torch.save(state, file)
        sizes.append(file.tell())
    kept = model.state_dict(keep_vars=True)["1.bias"]
    assert kept is model[1].bias
    return max(sizes)


def train_linear(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()


def test_saving_one_parameter_does_not_save_its_bucket():
    assert max(run_ranks(2, save_one_parameter)) < 8000


def state_dict_after_step():
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", "atc")
    train(model, optimizer, range(1))
    state = model.state_dict()
    return torch.cat([value.flatten() for value in state.values()])


def test_state_dict_has_the_averaged_values():
    got = run_ranks(RANKS, state_dict_after_step)
    check(got, expected_averaging(RANKS, "mlp", "sgd", "atc", [UNIFORM]))


def train_then_shut_down(order):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", order)
    train(model, optimizer, range(STEPS))
    bf.shutdown()
    model.eval()
    model(make_batch(0, 0)[0])
    return torch.cat([value.flatten() for value in model.state_dict().values()])


@pytest.mark.parametrize("order", ORDERS)
def test_shutdown_finishes_the_last_round(order):
    got = run_ranks(RANKS, train_then_shut_down, order)
    check(got, expected_averaging(RANKS, "mlp", "sgd", order, [UNIFORM] * STEPS))


def change_in_flight(order):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", order)
    train(model, optimizer, range(1))
    if order == "cta":
        model(make_batch(0, 0)[0])
    with torch.no_grad():
        model[0].bias.clamp_(-1, 1)
    with pytest.raises(RuntimeError, match=r"'0\.bias' was changed while its average"):
        optimizer.step()


@pytest.mark.parametrize("order", ORDERS)
def test_changes_in_flight_are_errors(order):
    run_ranks(RANKS, change_in_flight, order)


def wrap_again():
    model = make_model("mlp", bf.rank())
    first = wrap(model, "sgd", "atc")
    train(model, first, range(1))
    second = wrap(model, "sgd", "atc")
    train(model, second, range(1, STEPS))
    second.synchronize()
    with pytest.raises(RuntimeError, match="has handed its parameters"):
        first.step()
    return flatten(model)


def test_wrapping_again_takes_over_the_parameters():
    got = run_ranks(RANKS, wrap_again)
    check(got, expected_averaging(RANKS, "mlp", "sgd", "atc", [UNIFORM] * STEPS))


def train_in_a_set():
    """Train ranks 0 and 2 together, without rank 1."""
    members = bf.ProcessSet([0, 2])
    if not members.included:
        return None
    bf.set_topology(bf.FullyConnectedGraph(2), process_set=members)
    model = make_model("mlp", members.rank)
    optimizer = wrap(model, "sgd", "cta", process_set=members)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, members.rank, step)
        optimizer.step()
    return flatten(model)


def test_process_sets():
    got = run_ranks(3, train_in_a_set)
    assert got[1] is None
    matrices = [np.full((2, 2), 0.5)] * STEPS
    check([got[0], got[2]], expected_averaging(2, "mlp", "sgd", "cta", matrices))


def wrap_another(what, algorithm):
    """Wrap another model on rank 1 than on the other ranks."""
    is_odd = bf.rank() == 1
    # With bias 12 and 16 elements, which alignment pads to the same length.
    model = nn.Linear(3, 3 + (is_odd and what == "shape"))
    lone = is_odd and what == "frozen"
    model.bias.requires_grad_(not lone)
    passes = 2 if is_odd and what == "options" else 1
    with pytest.raises(bf.MismatchError) as caught:
        bf.DistributedOptimizer(
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad]),
            model,
            algorithm=algorithm,
            num_steps_per_communication=passes,
        )
    assert bf.allreduce(torch.ones(1)).item() == 1
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["gradient_allreduce", "neighbor_allreduce"])
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("shape", r"'bias' is .* \(3,\) on ranks 0, 2, but .* \(4,\) on rank 1; "),
        ("frozen", r"'bias' is .* \(3,\) on ranks 0, 2, but missing on rank 1"),
        (
            "options",
            r"communication is 1 on ranks 0, 2, but 2 on rank 1\. All ranks",
        ),
    ],
)
def test_ranks_must_wrap_equal_models(what, text, algorithm):
    errors = run_ranks(RANKS, wrap_another, what, algorithm)
    assert len(set(errors)) == 1
    assert re.search(text, errors[0])
    assert "same model with the same options" in errors[0]


def train_outside_of_a_set(which, optimizer_name):
    """Train on all ranks with an optimizer of ranks 0 and 2; return the parameters."""
    members = bf.ProcessSet([0, 2])
    if members.included:
        bf.set_topology(bf.FullyConnectedGraph(2), process_set=members)
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, optimizer_name, which, process_set=members)
    with optimizer.no_sync():
        pass
    train(model, optimizer, range(STEPS))
    optimizer.synchronize()
    bf.barrier()
    return flatten(model)


@pytest.mark.parametrize("which", ["cta", "atc", "gradients"])
def test_ranks_outside_of_a_process_set_step_alone(which):
    got = run_ranks(RANKS, train_outside_of_a_set, which, "momentum")
    alone = make_model("mlp", 1)
    plain = OPTIMIZERS["momentum"](alone.parameters())
    for step in range(STEPS):
        plain.zero_grad()
        backward(alone, 1, step)
        plain.step()
    torch.testing.assert_close(got[1], flatten(alone))
    assert not torch.equal(got[0], flatten(make_model("mlp", 0)))


def end_a_world(options):
    """Train in two worlds with one plain optimizer; return the parameters."""
    model = make_model("mlp", bf.rank())
    plain = OPTIMIZERS["sgd"](model.parameters())
    optimizer = bf.DistributedOptimizer(plain, model, **options)
    train(model, optimizer, range(STEPS))
    bf.barrier()
    bf.shutdown()
    bf.init()
    with pytest.raises(bf.ShutdownError, match="make the optimizer again"):
        optimizer.step()
    new = bf.DistributedOptimizer(plain, model, **options)
    new.load_state_dict(optimizer.state_dict())
    train(model, new, range(STEPS))
    new.synchronize()
    bf.barrier()
    return flatten(model)


@pytest.mark.parametrize(
    "algorithm", ["gradient_allreduce", "neighbor_allreduce", "extra", "win_put"]
)
def test_an_optimizer_is_made_again_in_a_new_world(algorithm):
    for parameters in run_ranks(2, end_a_world, {"algorithm": algorithm}):
        assert parameters.isfinite().all()
