"""What surrounds the steps: state dicts, schedulers, scalers, averages, helpers."""

import contextlib
import copy
import io
import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.training import (
    OPTIMIZERS,
    backward,
    expected_averaging,
    flatten,
    loss_of,
    make_batch,
    make_model,
    mix,
)

pytestmark = pytest.mark.mp

RANKS, STEPS = 3, 3
UNIFORM = np.full((RANKS, RANKS), 1 / RANKS)
ORDERS = ["cta", "atc"]
ALGORITHMS = {
    "cta": {"algorithm": "neighbor_allreduce", "order": "cta"},
    "atc": {"algorithm": "neighbor_allreduce", "order": "atc"},
    "gradients": {"algorithm": "gradient_allreduce"},
}


def wrap(model, optimizer, which, **options):
    return bf.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()),
        model,
        **{**ALGORITHMS[which], **options},
    )


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        optimizer.step()


def check(got, wanted, rtol=1e-9):
    np.testing.assert_allclose(torch.stack(got), wanted, rtol=rtol, atol=1e-12)


# -- checkpoints -----------------------------------------------------------------------


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
def test_foreign_memory_is_taken_in(order):
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


# -- schedulers and scalers ------------------------------------------------------------


def train_scheduled(which, before):
    with warnings.catch_warnings():
        # Schedulers warn when they miss the optimizer's steps.
        warnings.simplefilter("error")
        return train_scheduled_strictly(which, before)


def train_scheduled_strictly(which, before):
    model = make_model("mlp", bf.rank())
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    if before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer = bf.DistributedOptimizer(optimizer, model, **ALGORITHMS[which])
    if not before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = []
    for step in range(STEPS):
        train(model, optimizer, [step])
        scheduler.step()
        if step == 0:
            optimizer.load_state_dict(optimizer.state_dict())
        rates.append(optimizer.param_groups[0]["lr"])
    optimizer.synchronize()
    assert rates == [0.05, 0.025, 0.0125]
    return flatten(model)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("which", ALGORITHMS)
def test_schedulers(which, before):
    got = run_ranks(RANKS, train_scheduled, which, before)
    models = [make_model("mlp", rank) for rank in range(RANKS)]
    for step in range(STEPS):
        gradients = []
        for rank, model in enumerate(models):
            model.zero_grad()
            backward(model, rank, step)
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        gradients = torch.stack(gradients)
        values = torch.stack([flatten(model) for model in models])
        matrix, rate = torch.as_tensor(UNIFORM), 0.1 * 0.5**step
        new = {
            "cta": matrix @ values - rate * gradients,
            "atc": matrix @ (values - rate * gradients),
            "gradients": values - rate * (matrix @ gradients),
        }[which]
        for model, vector in zip(models, new, strict=True):
            with torch.no_grad():
                nn.utils.vector_to_parameters(vector, model.parameters())
    check(got, torch.stack([flatten(model) for model in models]))


def train_scaled(which, with_unscale, fused):
    """Rank 1 has an infinite gradient in step 1."""
    model = make_model("leaf", bf.rank()).float()
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, fused=fused),
        model,
        **ALGORITHMS[which],
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = make_batch(bf.rank(), step)
        loss = loss_of(model, (inputs.float(), targets))
        if step == 1 and bf.rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if with_unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped.append(scaler.get_scale() < before)
    optimizer.synchronize()
    return flatten(model), skipped


def expected_scaled(which, with_unscale):
    models = [make_model("leaf", rank).float() for rank in range(RANKS)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            inputs, targets = make_batch(rank, step)
            loss_of(model, (inputs.float(), targets)).backward()
        if which == "gradients":
            parameters = zip(*(model.parameters() for model in models), strict=True)
            for same in parameters:
                mean = torch.stack([p.grad for p in same]).mean(0)
                for parameter in same:
                    parameter.grad = mean.clone()
        for model in models:
            if with_unscale:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if which == "cta":
            mix(models, UNIFORM)
        for rank, optimizer in enumerate(optimizers):
            if step != 1 or (which != "gradients" and rank != 1):
                optimizer.step()
        if which == "atc":
            mix(models, UNIFORM)
    return torch.stack([flatten(model) for model in models])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("with_unscale", [True, False])
@pytest.mark.parametrize("which", ALGORITHMS)
def test_grad_scaler_with_a_skipped_step(which, with_unscale, fused):
    got = run_ranks(RANKS, train_scaled, which, with_unscale, fused)
    wanted = expected_scaled(which, with_unscale)
    check([entry[0] for entry in got], wanted, rtol=1e-4)
    for rank, (_, skipped) in enumerate(got):
        assert skipped == [False, which == "gradients" or rank == 1, False]


def skip_on_one_rank(which):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", which)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, bf.rank(), step)
        if bf.rank() == step:
            optimizer.skip_step()
        else:
            optimizer.step()
    optimizer.synchronize()
    return flatten(model)


@pytest.mark.parametrize("order", ORDERS)
def test_skip_step_takes_part_in_the_round(order):
    got = run_ranks(RANKS, skip_on_one_rank, order)
    models = [make_model("mlp", rank) for rank in range(RANKS)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            backward(model, rank, step)
        if order == "cta":
            mix(models, UNIFORM)
        for rank, optimizer in enumerate(optimizers):
            if rank != step:
                optimizer.step()
        if order == "atc":
            mix(models, UNIFORM)
    check(got, torch.stack([flatten(model) for model in models]))


# -- LBFGS and closures ----------------------------------------------------------------


def train_lbfgs(order):
    model = make_model("leaf", bf.rank())
    optimizer = wrap(model, "lbfgs", order)
    for step in range(STEPS):
        optimizer.step(closure_of(model, optimizer, bf.rank(), step))
    optimizer.synchronize()
    return flatten(model)


def closure_of(model, optimizer, rank, step):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, make_batch(rank, step))
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("order", ORDERS)
def test_lbfgs_with_parameter_averaging(order):
    got = run_ranks(RANKS, train_lbfgs, order)
    models = [make_model("leaf", rank) for rank in range(RANKS)]
    optimizers = [OPTIMIZERS["lbfgs"](model.parameters()) for model in models]
    for step in range(STEPS):
        if order == "cta":
            # With a closure the combination comes before the first evaluation.
            mix(models, UNIFORM)
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.step(closure_of(model, optimizer, rank, step))
        if order == "atc":
            mix(models, UNIFORM)
    check(got, torch.stack([flatten(model) for model in models]), rtol=1e-7)


# -- uneven inputs ---------------------------------------------------------------------


def train_unevenly(order, steps_of, topology):
    model = make_model("mlp", bf.rank())
    optimizer = wrap(model, "sgd", order, uneven_inputs=True, topology=topology)
    train(model, optimizer, range(steps_of[bf.rank()]))
    last = optimizer.join()
    return last, flatten(model)


@pytest.mark.parametrize("topology", [None, "one_peer"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps_of", [(1, 3, 2), (2, 2, 2)])
def test_join_goes_on_mixing(order, steps_of, topology):
    got = run_ranks(RANKS, train_unevenly, order, steps_of, topology)
    rounds = max(steps_of) + 1
    matrices = [UNIFORM] * rounds
    if topology:
        # The third rank hears of the hop of 2 from the first.
        hops = [1, 2]
        matrices = [
            0.5 * (np.eye(RANKS) + np.roll(np.eye(RANKS), hops[step % 2], axis=0))
            for step in range(rounds)
        ]
    models = [make_model("mlp", rank) for rank in range(RANKS)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for step, matrix in enumerate(matrices):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            if step < steps_of[rank]:
                backward(model, rank, step)
        if order == "cta":
            mix(models, matrix)
        for optimizer in optimizers:
            optimizer.step()
        if order == "atc":
            mix(models, matrix)
    last = max(rank for rank in range(RANKS) if steps_of[rank] == max(steps_of))
    assert [entry[0] for entry in got] == [last] * RANKS
    check([e[1] for e in got], torch.stack([flatten(model) for model in models]))


# -- helpers ---------------------------------------------------------------------------


class Normed(nn.Module):
    """Has buffers, a frozen parameter, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.own = nn.Parameter(torch.randn(2, 4))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return self.norm(x) @ self.own.T


def make_normed(rank):
    torch.manual_seed(rank)
    model = Normed().double()
    model.steps += rank
    model.norm.running_mean += rank
    return model


def broadcast_everything(which, root, named):
    model = make_normed(bf.rank())
    if which is not None:
        optimizer = wrap(model, "sgd", which)
        optimizer.zero_grad()
        model(torch.randn(5, 4, dtype=torch.float64)).sum().backward()
        optimizer.step()
    if named:
        bf.broadcast_parameters(model.named_parameters(), root_rank=root)
        return {k: v.detach().clone() for k, v in model.named_parameters()}
    bf.broadcast_parameters(model.state_dict(), root_rank=root)
    return {k: v.clone() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("which", [None, *ALGORITHMS])
def test_broadcast_parameters(which, root, named):
    got = run_ranks(RANKS, broadcast_everything, which, root, named)
    for state in got:
        for name, value in state.items():
            assert torch.equal(value, got[root][name])
    if which is None:
        state = make_normed(root).state_dict()
        for name, value in got[0].items():
            assert torch.equal(value, state[name])


def allreduce_in_each_form(which):
    model = make_normed(bf.rank())
    if which == "named":
        bf.allreduce_parameters(model.named_parameters())  # B15
    elif which == "state":
        bf.allreduce_parameters(model.state_dict())
    else:
        bf.allreduce_parameters([p for _, p in model.named_parameters()])
    return flatten(model), model.norm.running_mean, model.steps


@pytest.mark.parametrize("which", ["named", "state", "list"])
def test_allreduce_parameters(which):
    got = run_ranks(RANKS, allreduce_in_each_form, which)
    models = [make_normed(rank) for rank in range(RANKS)]
    mean = torch.stack([flatten(model) for model in models]).mean(0)
    check([entry[0] for entry in got], torch.stack([mean] * RANKS))
    for rank, (_, running_mean, steps) in enumerate(got):
        assert int(steps) == rank
        expected = 1.0 if which == "state" else float(rank)
        torch.testing.assert_close(
            running_mean, torch.full((4,), expected, dtype=torch.float64)
        )


def average_each_way(average_buffers):
    model = make_normed(bf.rank())
    own = copy.deepcopy(model.state_dict())
    state = bf.averaged_state_dict(model, average_buffers=average_buffers)
    assert equal(model.state_dict(), own)
    with (
        contextlib.suppress(KeyError),
        bf.averaged(model, average_buffers=average_buffers) as inside,
    ):
        assert inside is model
        assert equal(model.state_dict(), state)
        raise KeyError
    assert equal(model.state_dict(), own)
    bf.average_model(model, average_buffers=average_buffers)
    assert equal(model.state_dict(), state)
    return state


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) for k in one
    )


@pytest.mark.parametrize("average_buffers", [True, False])
def test_averages_of_models(average_buffers):
    got = run_ranks(RANKS, average_each_way, average_buffers)
    models = [make_normed(rank) for rank in range(RANKS)]
    for rank, state in enumerate(got):
        for name, value in models[rank].state_dict().items():
            is_buffer = name in ("steps", "norm.num_batches_tracked") or (
                "running" in name and not average_buffers
            )
            if not is_buffer:
                value = torch.stack([m.state_dict()[name] for m in models]).mean(0)
            torch.testing.assert_close(state[name], value)


def averaged_while_training(which):
    model = make_model("tied", bf.rank())
    optimizer = wrap(model, "sgd", which)
    train(model, optimizer, range(1))
    with bf.averaged(model):
        inside = flatten(model)
    state = bf.averaged_state_dict(model)
    names = [name for name, _ in model.named_parameters()]
    assert torch.equal(torch.cat([state[n].flatten() for n in names]), inside)
    assert torch.equal(state["first.weight"], state["second.weight"])
    train(model, optimizer, range(1, STEPS))
    optimizer.synchronize()
    return flatten(model)


@pytest.mark.parametrize("order", ORDERS)
def test_averages_leave_the_training_alone(order):
    got = run_ranks(RANKS, averaged_while_training, order)
    check(got, expected_averaging(RANKS, "tied", "sgd", order, [UNIFORM] * STEPS))


def measure_distance():
    return bf.consensus_distance(make_model("mlp", bf.rank()))


def test_consensus_distance():
    got = run_ranks(RANKS, measure_distance)
    values = torch.stack([flatten(make_model("mlp", rank)) for rank in range(RANKS)])
    square = (values - values.mean(0)).square().sum(1).mean()
    np.testing.assert_allclose(got, [float(square.sqrt())] * RANKS)


def broadcast_state(optimizer, wrapped, steps):
    model = make_model("mlp", bf.rank())
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (3 + bf.rank())
    if wrapped:
        optimizer = bf.DistributedOptimizer(
            optimizer, model, algorithm="neighbor_allreduce"
        )
    if bf.rank() == 1 and not wrapped:
        for step in range(steps):
            optimizer.zero_grad()
            backward(model, bf.rank(), step)
            optimizer.step(lambda: loss_of(model, make_batch(1, 0)))
    bf.broadcast_optimizer_state(optimizer, root_rank=1)
    state = optimizer.state_dict()
    return [state["param_groups"], state["state"]]


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "rmsprop", "lbfgs"])
def test_broadcast_optimizer_state(optimizer, wrapped, steps):
    got = run_ranks(RANKS, broadcast_state, optimizer, wrapped, steps)
    assert got[1][0][0]["lr"] == 0.1 / 4
    assert (len(got[1][1]) > 0) == (steps > 0 and not wrapped)
    for state in got:
        assert_same(state, got[1])


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


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


def test_wrapping_again_takes_the_parameters_over():
    got = run_ranks(RANKS, wrap_again)
    check(got, expected_averaging(RANKS, "mlp", "sgd", "atc", [UNIFORM] * STEPS))


def train_in_a_set():
    """Ranks 0 and 2 train together, rank 1 not at all."""
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
