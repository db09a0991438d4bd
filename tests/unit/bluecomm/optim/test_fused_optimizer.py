"""A fused optimizer with schedulers, scalers, hooks, copies, and odd parameters."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import bluecomm as bf


def linear(seed=0, **options):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4, **options), nn.Linear(4, 2, **options))


def backward(model, step):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    loss = model(x).square().sum()
    loss.backward()
    return loss


def train(model, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    return flatten(model)


def flatten(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def adam(model, **options):
    return torch.optim.Adam(model.parameters(), lr=0.01, **options)


def expected(make=adam, steps=3):
    model = linear()
    return train(model, make(model), steps)


def check(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-7)


# -- optimizers of others --------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """Has neither a foreach nor a fused form, and counts its steps in Python."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m = state.get("m", torch.zeros_like(p))
                state["steps"] = state.get("steps", 0) + 1
                p.data = p - group["lr"] * (0.9 * m + 0.1 * p.grad).sign()
                state["m"] = 0.99 * m + 0.01 * p.grad


class Prepared(torch.optim.Optimizer):
    """Has state that its constructor makes, and that its step expects."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"sum": torch.full_like(p, 0.5), "steps": torch.zeros(1)}

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            state["steps"] += 1
            state["sum"] += p.grad.square()
            p -= 0.1 * p.grad / state["sum"].sqrt() / state["steps"]


class Forgetful(torch.optim.Optimizer):
    """Drops some of its state after the second step, and all after the third."""

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            state["steps"] = state.get("steps", 0) + 1
            state["m"] = 0.5 * state.get("m", 0) + p.grad
            p -= 0.1 * state["steps"] * state["m"]
            if state["steps"] == 2:
                del state["m"]
            elif state["steps"] == 3:
                del self.state[p]


class Lars(torch.optim.SGD):
    """Scales the gradient of each parameter by norms, but not of vectors."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.dim() > 1:
                    p.grad *= p.detach().norm() / p.grad.norm()
        return super().step(closure)


class Lamb(torch.optim.Adam):
    """Scales Adam's update of each parameter by norms."""

    @torch.no_grad()
    def step(self, closure=None):
        old = [p.clone() for group in self.param_groups for p in group["params"]]
        super().step(closure)
        for before, p in zip(old, self.param_groups[0]["params"], strict=True):
            update = p - before
            p.copy_(before + 0.01 * update * before.norm() / update.norm())


class Twice(torch.optim.SGD):
    def step(self, closure=None):
        if closure is not None:
            closure()
        return super().step(closure)


class Global(torch.optim.SGD):
    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1
        return super().step(closure)


class Idle(torch.optim.SGD):
    def step(self, closure=None):
        pass


class Clearing(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.zero_grad()


class Row(torch.optim.SGD):
    """Keeps state of another shape, which its update does not need."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["rows"] = torch.zeros(2, 2)
        return super().step(closure)


class Listed(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["seen"] = [1]
        return super().step(closure)


class Wrapping(torch.optim.SGD):
    def __init__(self, inner):
        super().__init__(inner.param_groups, lr=0.1)
        self.inner = inner


def test_fuses_an_optimizer_without_a_fused_form():
    plain = linear()
    wanted = train(plain, plain_lion := Lion(plain.parameters()))
    model = linear()
    fused = bf.fuse_optimizer(Lion(model.parameters()))
    check(train(model, fused), wanted)
    assert fused.fusion_counts == (3, 3, 0)
    assert fused.param_groups[0]["steps"] == 3
    states = fused.state_dict()["state"], plain_lion.state_dict()["state"]
    torch.testing.assert_close(*states)


def test_fuses_an_optimizer_whose_constructor_makes_state():
    wanted = expected(lambda model: Prepared(model.parameters()))
    model = linear()
    fused = bf.fuse_optimizer(Prepared(model.parameters()))
    check(train(model, fused), wanted)
    assert fused.fusion_counts == (3, 3, 0)
    assert fused.state[model[1].bias]["steps"].tolist() == [3.0]


@pytest.mark.parametrize("limit", [None, 0])
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_fuses_an_optimizer_that_drops_state(steps, limit):
    def fuse_up_to_limit(optimizer):
        return bf.fuse_optimizer(optimizer, max_elements=limit)

    results = []
    for fuse in (lambda optimizer: optimizer, fuse_up_to_limit):
        model = linear()
        optimizer = fuse(Forgetful(model.parameters(), {}))
        train(model, optimizer, steps)
        results.append((flatten(model), optimizer.state_dict()["state"]))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Lars, "depends on other elements of its parameter"),
        (Lamb, "depends on other elements of its parameter"),
        (Twice, "evaluates its closure 2 times"),
        (Global, "state that belongs to no parameter"),
        (Idle, "does not change the parameters"),
        (Clearing, "its step removes the gradients"),
        (Row, "the state 'rows' of .* has the shape"),
        (Listed, "the optimizer's state 'seen' is a list"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refuses_what_is_not_elementwise(kind, reason):
    optimizer = kind(linear().parameters(), lr=0.0)  # a warm-up may begin with 0
    with pytest.raises(
        ValueError, match=f"{kind.__name__} cannot be fused: .*{reason}"
    ):
        bf.fuse_optimizer(optimizer)


def test_refuses_a_wrapper_and_a_differentiable_step():
    optimizer = Wrapping(adam(linear()))
    with pytest.raises(ValueError, match="it wraps another optimizer"):
        bf.fuse_optimizer(optimizer)
    optimizer = adam(linear(), differentiable=True)
    with pytest.raises(ValueError, match="differentiable=True makes"):
        bf.fuse_optimizer(optimizer)


def test_refuses_other_objects():
    model = linear()
    with pytest.raises(TypeError, match="got Sequential"):
        bf.fuse_optimizer(model)
    fused = bf.fuse_optimizer(adam(model))
    with pytest.raises(ValueError, match="fused already"):
        bf.fuse_optimizer(fused)
    with pytest.raises(ValueError, match="max_elements >= 0 or None, got -1"):
        bf.fuse_optimizer(adam(model), max_elements=-1)


# -- calls -----------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
def test_schedulers(before):
    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)

    plain = linear()
    optimizer = adam(plain)
    scheduler = one_cycle(optimizer)
    rates = []
    for step in range(4):
        backward(plain, step)
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    model = linear()
    optimizer = adam(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a scheduler that misses steps
        scheduler = one_cycle(optimizer) if before else None
        fused = bf.fuse_optimizer(optimizer)
        scheduler = scheduler or one_cycle(fused)
        for step in range(4):
            backward(model, step)
            fused.step()
            scheduler.step()
            assert fused.param_groups[0]["lr"] == rates[step]
            fused.load_state_dict(copy.deepcopy(fused.state_dict()))
    check(flatten(model), flatten(plain))


def test_hooks_see_the_parameters():
    model = linear()
    optimizer = adam(model)
    seen = []

    def see(optimizer, args, kwargs):
        seen.append([p.shape for p in optimizer.param_groups[0]["params"]])
        for parameter in model.parameters():
            assert parameter.grad is not None

    optimizer.register_step_pre_hook(see)
    fused = bf.fuse_optimizer(optimizer)
    fused.register_step_post_hook(see)
    hook = register_optimizer_step_pre_hook(see)
    try:
        train(model, fused, 1)
    finally:
        hook.remove()
    assert seen == 3 * [[p.shape for p in model.parameters()]]


def test_closure_is_evaluated_once_before_the_step():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    losses = []

    def closure():
        fused.zero_grad()
        losses.append(backward(model, 0))
        return losses[-1]

    assert fused.step(closure) is losses[0]
    assert len(losses) == 1
    check(flatten(model), expected(steps=1))


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["plain", "fused"])
def test_scaler_skips_steps_with_infinities(options):
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = linear()
        optimizer = fuse(adam(model, **options))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.full((1, 3), float("inf") if step == 1 else 1.0)
            scaler.scale(model(x).square().sum()).backward()
            if step == 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        results.append(flatten(model))
        assert optimizer.state[model[0].weight]["step"] == 3
    check(results[1], results[0])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none):
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    train(model, fused, 1)
    fused.zero_grad(set_to_none)
    gradients = [parameter.grad for parameter in model.parameters()]
    if set_to_none:
        assert gradients == 4 * [None]
    else:
        assert not any(gradient.any() for gradient in gradients)
    backward(model, 1)
    fused.step()
    check(flatten(model), expected(steps=2))


def test_learning_rate_may_be_a_tensor():
    model = linear()
    rate = torch.tensor(0.01)
    fused = bf.fuse_optimizer(torch.optim.Adam(model.parameters(), lr=rate))
    train(model, fused, 2)
    rate.fill_(0.0)
    before = flatten(model)
    train(model, fused, 1)
    check(flatten(model), before)
    assert fused.param_groups[0]["lr"] is rate


def test_add_param_group():
    def two(model, add):
        optimizer = torch.optim.Adam(model[0].parameters(), lr=0.01)
        optimizer = add(optimizer)
        train(model, optimizer, 1)
        optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.1})
        return train(model, optimizer), optimizer

    wanted, _ = two(linear(), lambda optimizer: optimizer)
    got, fused = two(linear(), bf.fuse_optimizer)
    check(got, wanted)
    assert fused.fusion_counts == (4, 7, 0)
    bad = {"params": nn.Linear(2, 2).parameters(), "differentiable": True}
    with pytest.raises(ValueError, match="differentiable"):
        fused.add_param_group(bad)
    assert len(fused.param_groups) == 2


def test_backward_after_the_step_is_an_error():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    loss = model(torch.ones(1, 3)).sum()
    loss.backward(retain_graph=True)
    fused.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# -- state -----------------------------------------------------------------------------


def test_copies_are_plain_and_independent():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    train(model, fused, 2)
    both = [
        copy.deepcopy([model, fused]),
        pickle.loads(pickle.dumps([model, fused])),
    ]
    for other, optimizer in both:
        assert type(optimizer) is torch.optim.Adam
        train(other, optimizer, 1)
        assert [int(s["step"]) for s in optimizer.state.values()] == 4 * [3]
    train(model, fused, 1)
    for other, _ in both:
        check(flatten(other), flatten(model))


def test_a_failed_step_leaves_the_optimizer_usable():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    train(model, fused, 1)
    groups, state = fused.param_groups, fused.state
    with pytest.raises(TypeError, match="unexpected keyword"):
        fused.step(unknown=1)
    assert fused.param_groups is groups
    assert fused.state is state
    fused.zero_grad()
    backward(model, 1)
    fused.step()
    check(flatten(model), expected(steps=2))


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer, p: optimizer.state.clear(),
        lambda optimizer, p: optimizer.state.pop(p),
        lambda optimizer, p: optimizer.state[p].clear(),
        lambda optimizer, p: optimizer.state.update({p: {}}),
        lambda optimizer, p: optimizer.state[p]["step"].zero_(),
        lambda optimizer, p: optimizer.state[p]["exp_avg"].zero_(),
        lambda optimizer, p: optimizer.state[p].update(step=torch.tensor(9.0)),
        lambda optimizer, p: optimizer.state[p].update(exp_avg=torch.ones_like(p)),
        lambda optimizer, p: setattr(
            optimizer.state[p]["exp_avg"], "data", torch.ones_like(p)
        ),
        lambda optimizer, p: setattr(p, "data", p.data + 1),
        lambda optimizer, p: p.data.mul_(2),
        lambda optimizer, p: optimizer.param_groups[0]["params"].pop(1),
    ],
    ids=lambda change: "change",
)
def test_notices_changes_by_the_user(change):
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = linear()
        optimizer = fuse(adam(model))
        train(model, optimizer, 2)
        change(optimizer, model[0].bias)
        train(model, optimizer, 2)
        states = [optimizer.state.get(p, {}) for p in model.parameters()]
        results.append((flatten(model), states))
    check(*reversed(results))


def test_checkpoints_hold_flat_memory_once():
    sizes = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = nn.ParameterList([nn.Parameter(torch.ones(32)) for _ in range(30)])
        optimizer = fuse(adam(model))
        for parameter in model:
            parameter.grad = torch.ones(32)
        optimizer.step()
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        sizes.append(file.tell())
    assert sizes[1] <= sizes[0]


def test_state_may_have_several_dtypes():
    """After load_state_dict, some scalars have the dtype of the parameter."""
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = linear(dtype=torch.float64)
        optimizer = fuse(torch.optim.NAdam(model.parameters()))
        for step in range(3):
            optimizer.zero_grad()
            used = model if step else model[0]
            used(torch.ones(1, 3, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        results.append(flatten(model))
    check(results[1], results[0])


def test_refuses_state_that_does_not_fit():
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    train(model, fused, 1)
    weight = model[0].weight
    for wrong, reason in (
        (torch.ones(3), r"the shape \(3,\); expected that of the parameter"),
        (torch.ones(1), r"the shape \(1,\); expected that of the parameter"),
        ([1], "is a list"),
    ):
        right = fused.state[weight]["exp_avg"]
        fused.state[weight]["exp_avg"] = wrong
        with pytest.raises(RuntimeError, match=reason):
            fused.step()
        fused.state[weight]["exp_avg"] = right.clone()
    fused.step()


def test_refused_state_can_be_put_back():
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        model = linear()
        optimizer = fuse(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        train(model, optimizer, 1)
        entry = optimizer.state[model[0].weight]
        right = entry["momentum_buffer"]
        entry["momentum_buffer"] = torch.ones(3)
        with pytest.raises(RuntimeError):
            optimizer.step()
        entry["momentum_buffer"] = right
        optimizer.zero_grad()
        model[0](torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        results.append(flatten(model))
    check(results[1], results[0])


# -- parameters ------------------------------------------------------------------------


def test_parameters_become_views():
    model = linear()
    bf.fuse_optimizer(adam(model))
    addresses = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(addresses) == 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients_step_alone(momentum):
    def words():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))

    def train_words(fuse):
        model = words()
        optimizer = fuse(torch.optim.SGD(model.parameters(), 0.1, momentum))
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([step, step + 1])).square().sum().backward()
            optimizer.step()
        return flatten(model), optimizer

    wanted, _ = train_words(lambda optimizer: optimizer)
    got, fused = train_words(bf.fuse_optimizer)
    check(got, wanted)
    assert fused.fusion_counts == (3, 3, 3)


LENGTHS = [(3,), (2, 5), (16,), (1,), (), (7,), (4, 4), (0,), (40,)]


@pytest.mark.parametrize("shapes", [LENGTHS, [(16,)] * 3, [(3,)] * 3])
def test_vectors_of_all_lengths_are_copied_to_their_places(shapes):
    def train_vectors(fuse):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        optimizer = fuse(torch.optim.SGD(parameters, 0.1, 0.9))
        for step in range(4):
            for position, parameter in enumerate(parameters):
                wide = torch.randn(*parameter.shape, 2)
                parameter.grad = wide[..., 0] if position % 2 else wide[..., 0].clone()
            if step == 2:
                parameters[-1].grad = None
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in parameters]), optimizer

    wanted, _ = train_vectors(lambda optimizer: optimizer)
    got, fused = train_vectors(bf.fuse_optimizer)
    check(got, wanted)
    assert fused.fusion_counts.alone == 0


def test_a_gradient_of_another_length_is_an_error():
    parameters = [nn.Parameter(torch.zeros(16)) for _ in range(3)]
    fused = bf.fuse_optimizer(torch.optim.SGD(parameters, lr=1.0))
    parameters[1].data = parameters[1].data[:4]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(RuntimeError, match="size of tensor"):
        fused.step()


def test_memory_of_others_stays_where_it_is():
    tied = nn.Parameter(torch.zeros(2, 2))
    other = nn.Parameter(tied.data[0])
    shared = nn.Parameter(torch.zeros(3).share_memory_())
    own = nn.Parameter(torch.zeros(3))
    parameters = [tied, other, shared, own]
    addresses = [p.data_ptr() for p in parameters]
    fused = bf.fuse_optimizer(torch.optim.SGD(parameters, lr=1.0))
    for p in parameters:
        p.grad = torch.ones_like(p)
    fused.step()
    assert [p.data_ptr() for p in parameters[:3]] == addresses[:3]
    assert fused.fusion_counts == (1, 1, 3)
    assert tied.tolist() == [[-2.0, -2.0], [-1.0, -1.0]]
    assert own.tolist() == shared.tolist() == 3 * [-1.0]


def test_parameters_of_several_groups_stay_tied():
    one = nn.Parameter(torch.zeros(2, 2))
    other = nn.Parameter(one.data)
    groups = [{"params": [one]}, {"params": [other], "lr": 0.5}]
    fused = bf.fuse_optimizer(torch.optim.SGD(groups, lr=1.0))
    one.grad = other.grad = torch.ones(2, 2)
    fused.step()
    assert one.data_ptr() == other.data_ptr()
    assert one.tolist() == 2 * [[-1.5, -1.5]]


@pytest.mark.parametrize(("limit", "alone"), [(7, 2), (8, 1), (None, 0)])
def test_large_parameters_step_alone(limit, alone):
    model = linear()
    fused = bf.fuse_optimizer(adam(model), max_elements=limit)
    check(train(model, fused), expected())
    assert fused.fusion_counts == (3, 3, 3 * alone)


def test_a_parameter_may_be_transposed():
    results = []
    for fuse in (lambda optimizer: optimizer, bf.fuse_optimizer):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        optimizer = fuse(torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer, 1)
        model.weight.data = model.weight.data.T
        results.append(train(model, optimizer, 2))
    check(results[1], results[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.double(), "and is torch.float64"),
        (
            lambda model: setattr(
                model[0].weight, "data", model[0].weight.data.view(3, 4)
            ),
            r"and is .* of shape \(3, 4\)",
        ),
    ],
    ids=["dtype", "shape"],
)
def test_a_converted_model_is_an_error(change, reason):
    model = linear()
    fused = bf.fuse_optimizer(adam(model))
    change(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    start = r"\['params'\]\[0\] was torch.float32 of shape \(4, 3\) .*"
    with pytest.raises(RuntimeError, match=start + reason):
        fused.step()


# -- distributed -----------------------------------------------------------------------


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("algorithm", ["gradient_allreduce", "neighbor_allreduce"])
def test_in_a_distributed_optimizer(algorithm):
    model = linear()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    fused = bf.fuse_optimizer(optimizer)
    new = bf.DistributedOptimizer(fused, model, algorithm=algorithm)
    assert isinstance(new, torch.optim.Adam)
    train(model, new, 1)
    scheduler.step()
    new.load_state_dict(new.state_dict())
    assert new.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.005
    assert type(copy.deepcopy(new)) is torch.optim.Adam
    train(model, new, 1)
    assert new.fusion_counts == (2, 2, 0)
    with pytest.raises(ValueError, match="fuse it first"):
        bf.fuse_optimizer(new)
