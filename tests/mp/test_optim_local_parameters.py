"""Parameters that each rank trains on its own, such as experts."""

import copy
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import bluecomm as bf
from bluecomm.optim.registry import get_algorithm
from dist_optimizer import WITH_ADAM, WITH_QADAM
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

RANKS, STEPS = 3, 5
MOMENTUM_OF_ITS_OWN = {"decentlam", "demo"}


class Mixed(nn.Module):
    """One layer that all ranks have, and some that only this rank has."""

    def __init__(self, experts):
        super().__init__()
        torch.manual_seed(1)
        self.shared = nn.Linear(4, 3)
        torch.manual_seed(10 + bf.rank())
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)) for _ in range(experts)
        )

    def forward(self, x):
        return self.shared(x).square().mean() + self.of_experts(x)

    def of_experts(self, x):
        return sum((e(x) - 1).square().mean() for e in self.experts)


def batch(step):
    generator = torch.Generator().manual_seed(100 * bf.rank() + step)
    return torch.randn(6, 4, generator=generator)


def make_optimizer(parameters, name):
    if name in WITH_QADAM:
        return bf.optim.QAdam(parameters, lr=0.01, warmup_steps=2)
    if name in WITH_ADAM:
        return torch.optim.Adam(parameters, lr=0.01)
    momentum = 0.0 if name in MOMENTUM_OF_ITS_OWN else 0.9
    return torch.optim.SGD(parameters, lr=0.05, momentum=momentum)


def train(model, name, loss, *, distributed=True, **options):
    """Train a model; return it and its optimizer."""
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters, name)
    if distributed:
        if name in ("diloco", "desloc"):
            options["num_steps_per_communication"] = 2
        optimizer = bf.DistributedOptimizer(optimizer, model, algorithm=name, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, batch(step)).backward()
        optimizer.step()
    if distributed:
        optimizer.synchronize()
    return model, optimizer


def values(module):
    return [p.detach().clone() for p in module.parameters()]


def equal(some, others):
    assert len(some) == len(others)
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def train_with_every_algorithm():
    """Experts train as with the plain optimizer, the rest as without experts."""
    count = bf.rank()
    for name in bf.algorithm_names():
        model = Mixed(count)
        alone = copy.deepcopy(model.experts)
        train(model, name, Mixed.forward, local_parameters=lambda n, _: "experts" in n)
        if count:
            holder = Mixed(0)
            holder.experts = alone
            holder.shared = nn.Identity()
            train(holder, name, Mixed.of_experts, distributed=False)
            assert equal(values(model.experts), values(holder.experts)), name
        if not get_algorithm(name).depends_on_speed:
            plain, _ = train(Mixed(0), name, Mixed.forward)
            assert equal(values(model.shared), values(plain.shared)), name
        else:
            bf.barrier()


def test_every_algorithm_leaves_local_parameters_alone():
    run_ranks(RANKS, train_with_every_algorithm)


def keep_experts():
    """All functions that make models or states equal leave experts out."""
    rank = bf.rank()
    model = Mixed(rank)
    for parameter in model.experts.parameters():
        parameter.expert = True
    # Statistics of an expert's BatchNorm are marked by name.
    names = bf.mark_local(model, ["experts"] if rank else [])
    assert len(names) == 7 * rank
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)
    own = [t.clone() for t in model.experts.state_dict().values()]

    def check(shared):
        assert equal(list(model.experts.state_dict().values()), own)
        found = model.shared.weight - start.shared.weight
        torch.testing.assert_close(found, torch.full_like(found, shared))

    start = Mixed(0)
    with bf.averaged(model, average_buffers=True):
        check(1.0)
    assert bf.consensus_distance(model) == pytest.approx((2 / 3 * 15) ** 0.5)
    state = bf.averaged_state_dict(model, average_buffers=True)
    assert len(state) == 2 + 7 * rank
    bf.broadcast_parameters(model, 2)
    check(2.0)
    # The mean of three equal numbers may have another last bit.
    assert bf.consensus_distance(model) == pytest.approx(0, abs=1e-6)
    bf.average_model(model, average_buffers=True)
    bf.allreduce_parameters(model)
    check(2.0)
    model, optimizer = train(model, "gradient_allreduce", Mixed.forward)
    own = [t.clone() for t in model.experts.state_dict().values()]
    # A state dict has the marks now.
    bf.broadcast_parameters(model.state_dict(), 1)
    assert equal(list(model.experts.state_dict().values()), own)
    return keep_states(model, optimizer, own)


def keep_states(model, optimizer, own):
    rank = bf.rank()
    optimizer.param_groups[0]["lr"] = 1.0 + rank
    moments = [
        optimizer.state[p]["momentum_buffer"].clone()
        for p in model.experts.parameters()
    ]
    for p in model.shared.parameters():
        optimizer.state[p]["momentum_buffer"].fill_(rank)
    bf.broadcast_optimizer_state(optimizer, 2)
    check_state(model, optimizer, 2.0, moments)
    with torch.no_grad():
        for p in model.shared.parameters():
            p.fill_(rank)
            optimizer.state[p]["momentum_buffer"].fill_(rank)
    optimizer.param_groups[0]["lr"] = 1.0 + rank
    bf.elastic.TorchState(model, optimizer).sync()
    assert equal(list(model.experts.state_dict().values()), own)
    assert model.shared.weight.unique().tolist() == [0]
    check_state(model, optimizer, 0.0, moments)
    return bf.consensus_distance(model)


def check_state(model, optimizer, shared, moments):
    """Raise unless rank ``shared`` has given its state of the shared parameters."""
    assert optimizer.param_groups[0]["lr"] == 1.0 + shared
    for p in model.shared.parameters():
        assert optimizer.state[p]["momentum_buffer"].unique().tolist() == [shared]
    found = [optimizer.state[p]["momentum_buffer"] for p in model.experts.parameters()]
    assert equal(found, moments)


def test_states_and_averages_leave_local_parameters_out():
    assert run_ranks(RANKS, keep_experts) == [0] * RANKS


def refuse_what_does_not_fit():
    model = Mixed(1)
    with pytest.raises(ValueError, match=r"no .* is named 'expert'; did you mean 'exp"):
        bf.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1),
            model,
            local_parameters=["expert"],
        )
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model, local_parameters=["experts"]
    )
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(batch(0))).backward()
    with pytest.raises(ValueError, match=r"GradScaler and local .* Use bfloat16"):
        scaler.step(optimizer)
    # With parameter averaging a rank may skip alone.
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model, algorithm="allreduce"
    )
    scaler.update()
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(model(batch(step))).backward()
        if bf.rank() == 0 and not step:
            next(model.experts.parameters()).grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
    before = values(model.experts)
    replaced = {key: value + 1 for key, value in model.state_dict().items()}
    model.load_state_dict(replaced, assign=True)
    model(batch(0)).backward()
    assert equal(values(model.experts), [value + 1 for value in before])
    assert {id(p) for p in model.parameters()} == {
        id(p) for p in optimizer.param_groups[0]["params"]
    }


def test_refuses_what_does_not_fit():
    run_ranks(2, refuse_what_does_not_fit)


# -- the page --------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def run_the_example(program):
    """Run the program, and train its model again beside one with all experts."""
    namespace = runpy.run_path(program)
    found = namespace["model"]
    before = values(found[1].expert)
    assert bf.consensus_distance(found) == pytest.approx(0, abs=1e-6)
    first = bf.allgather(torch.cat([p.flatten() for p in before])[None])
    assert len(first.unique(dim=0)) == bf.size()
    return namespace["loss"].item(), follow_one_process(namespace["Moe"])


def follow_one_process(moe):
    """Train as the example does; return the largest difference from one process."""
    torch.manual_seed(bf.rank())
    model = nn.Sequential(nn.Linear(4, 8), moe(8), nn.Linear(8, 2)).double()
    bf.broadcast_parameters(model)
    experts = [
        bf.broadcast_object(copy.deepcopy(model[1].expert.state_dict()), rank)
        for rank in range(bf.size())
    ]
    whole = AllExperts(copy.deepcopy(model), experts)
    options = {"lr": 0.1, "momentum": 0.9}
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), **options), model
    )
    reference = torch.optim.SGD(whole.parameters(), **options)
    for step in range(STEPS):
        x = torch.cat([torch.randn(7, 4) for _ in range(1)]).double()
        everything = bf.allgather(x, name=f"x{step}")
        optimizer.zero_grad()
        mse_loss(model(x), x[:, :2].sin()).backward()
        optimizer.step()
        reference.zero_grad()
        mse_loss(whole(everything), everything[:, :2].sin()).backward()
        reference.step()
    pairs = [
        (model[0], whole.layers[0]),
        (model[1].gate, whole.layers[1].gate),
        (model[1].expert, whole.experts[bf.rank()]),
        (model[2], whole.layers[2]),
    ]
    return max(
        (mine - other).abs().max().item()
        for one, two in pairs
        for mine, other in zip(one.parameters(), two.parameters(), strict=True)
    )


class AllExperts(nn.Module):
    """The model of the example on one process, which has all experts."""

    def __init__(self, layers, states):
        super().__init__()
        self.layers = layers
        own = layers[1].expert
        self.experts = nn.ModuleList()
        for state in states:
            expert = copy.deepcopy(own)
            expert.load_state_dict(state)
            self.experts.append(expert)
        del layers[1].expert

    def forward(self, x):
        tokens = self.layers[0](x)
        weight, chosen = self.layers[1].gate(tokens).softmax(-1).max(-1)
        every = torch.stack([expert(tokens) for expert in self.experts])
        results = every[chosen, torch.arange(len(tokens))]
        return self.layers[2](tokens + weight[:, None] * results)


def test_the_example_trains_like_one_process(tmp_path: Path):
    (text,) = re.findall(r"^\*\*moe.py\*\*:\n\n```python\n(.*?)```", PAGE, re.M | re.S)
    (tmp_path / "moe.py").write_text(text)
    for loss, difference in run_ranks(RANKS, run_the_example, str(tmp_path / "moe.py")):
        assert loss < 0.5
        assert difference < 1e-12
