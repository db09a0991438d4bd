"""Algorithms of bluecomm as communication hooks of DistributedDataParallel."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bluecomm as bf
from bluecomm.optim.registry import names_that_work_in_backward
from tests.support.torch_world import run_torch_ranks

pytestmark = pytest.mark.mp

STEPS = 4
ALGORITHM_OPTIONS = {
    "powersgd": {"rank": 2, "start_step": 0, "min_compression_rate": 0.5}
}
RANKS = 3


def make_model():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 20), Own(20))


class Own(nn.Module):
    """Uses its last parameter first, so that gradients are ready in another order."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, width))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.nn.functional.linear(x * self.scale, self.weight)


def loss_of(model, step):
    generator = torch.Generator().manual_seed(10 * step + bf.rank())
    return model(torch.randn(5, 8, generator=generator)).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def watched(hook, layouts):
    """Return a hook that notes which parameters are in which bucket."""

    def call(state, bucket):
        if bucket.index() == 0:
            layouts.append([])
        layouts[-1].append([names[id(p)] for p in bucket.parameters()])
        return hook(state, bucket)

    names = {}
    return call, names


def train_with_hook(group, algorithm, options):
    """Return the parameters after each step, and the buckets of each step."""
    model = make_model()
    ddp = DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=0.0015, **options
    )
    layouts = []
    hook, names = watched(
        bf.ddp_comm_hook(algorithm, **ALGORITHM_OPTIONS.get(algorithm, {})), layouts
    )
    names.update({id(p): name for name, p in model.named_parameters()})
    ddp.register_comm_hook(group, hook)
    optimizer, seen = sgd(model), []
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == 2:
            with ddp.no_sync():
                loss_of(ddp, 100).backward()
        loss_of(ddp, step).backward()
        optimizer.step()
        seen.append(values(model))
    return seen, layouts


def train_without(algorithm, layouts):
    """Train with ``DistributedOptimizer`` and the same buckets in each step."""
    model = make_model()
    plain, state, optimizer, seen = sgd(model), None, None, []
    for step in range(STEPS):
        if optimizer is None or layouts[step] != layouts[step - 1]:
            by_name = dict(model.named_parameters())
            order = [name for bucket in layouts[step] for name in bucket]
            optimizer = bf.DistributedOptimizer(
                plain,
                named_parameters=[(name, by_name[name]) for name in reversed(order)],
                groups=[[by_name[name] for name in one] for one in layouts[step]],
                algorithm=algorithm,
                **ALGORITHM_OPTIONS.get(algorithm, {}),
            )
            if state is not None:
                optimizer.load_state_dict(state)
        optimizer.zero_grad()
        if step == 2:
            with optimizer.no_sync():
                loss_of(model, 100).backward()
        loss_of(model, step).backward()
        optimizer.step()
        seen.append(values(model))
        if step + 1 < STEPS and layouts[step + 1] != layouts[step]:
            plain, state = sgd(model), optimizer.state_dict()
    return seen


DDP_OPTIONS = {
    "plain": {},
    "bucket view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
}


def compare_with_optimizer():
    bf.init()
    gloo = dist.new_group(backend="gloo")
    rebuilt = set()
    for algorithm in names_that_work_in_backward():
        for name, options in DDP_OPTIONS.items():
            for group in (None, gloo):
                seen, layouts = train_with_hook(group, algorithm, options)
                assert len(layouts) == STEPS
                assert len(layouts[-1]) > 1
                if layouts[0] != layouts[-1]:
                    rebuilt.add(name)
                others = train_without(algorithm, layouts)
                for mine, theirs in zip(seen, others, strict=True):
                    for one, other in zip(mine, theirs, strict=True):
                        assert torch.equal(one, other), (algorithm, name, group)
    return sorted(rebuilt)


def test_has_the_bits_of_the_distributed_optimizer(tmp_path):
    for rebuilt in run_torch_ranks(RANKS, compare_with_optimizer, tmp_path):
        assert rebuilt == ["bucket view", "plain", "static graph"]


class Branches(nn.Module):
    """Each rank leaves another parameter unused, and all ranks the last one.

    The first layer has another type.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(nn.Linear(8, 3) for _ in range(RANKS + 1))
        self.layers[0].double()

    def forward(self, x):
        return sum(
            layer(x.to(layer.weight.dtype))
            for k, layer in enumerate(self.layers[:-1])
            if k != bf.rank()
        )


def train_branches(hook):
    model = Branches()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        optimizer.step()
    assert model.layers[-1].weight.grad is None
    return values(model)


def two_models():
    """Two models whose gradients come in one backward pass, and NaN on one rank."""
    models = [nn.Linear(8, 8), nn.Linear(8, 2)]
    ddps = [DistributedDataParallel(model) for model in models]
    for ddp in ddps:
        ddp.register_comm_hook(None, bf.ddp_comm_hook("bytegrad"))
    found = []
    for step in range(3):
        for ddp in ddps:
            ddp.zero_grad()
        loss = loss_of(nn.Sequential(*ddps), step)
        if step == 1 and bf.rank() == 1:
            loss = loss * math.nan
        loss.backward()
        gradients = torch.cat(
            [p.grad.flatten() for m in models for p in m.parameters()]
        )
        everyone = bf.allgather(gradients[None])
        found.append([bool(everyone.isnan().all()), bool(everyone.isnan().any())])
        if step != 1:
            assert all(torch.equal(everyone[0], other) for other in everyone)
    assert found == [[False, False], [True, True], [False, False]]


def uneven_inputs():
    """Ranks without data count as zeros."""
    model = nn.Linear(8, 1, bias=False)
    nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, bf.ddp_comm_hook())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with ddp.join():
        for _ in range(2 + bf.rank()):
            optimizer.zero_grad()
            ddp(torch.ones(1, 8)).sum().backward()
            optimizer.step()
    # All three ranks took two steps, two a third one, and one a fourth one.
    torch.testing.assert_close(model.weight, torch.full((1, 8), -2 - 2 / 3 - 1 / 3))


def backward(module, hook, *, state=None, data=None):
    ddp = DistributedDataParallel(module)
    ddp.register_comm_hook(state, hook)
    x = torch.ones(2, 8) if data is None else data
    ddp(x).sum().backward()


def refuse():
    hook = bf.ddp_comm_hook()
    backward(nn.Linear(8, 2), hook)
    with pytest.raises(ValueError, match="registered with a second model"):
        backward(nn.Linear(8, 2), hook)
    model = nn.Linear(8, 2)
    model.bias.expert = True
    with pytest.raises(
        ValueError, match=r"local parameter of shape \(2,\).*mark_local"
    ):
        backward(model, bf.ddp_comm_hook())
    bf.mark_local(model)
    model.zero_grad()
    backward(model, bf.ddp_comm_hook())
    assert model.bias.grad.tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"sparse gradient .* shape \(9, 2\)"):
        backward(
            nn.Embedding(9, 2, sparse=True),
            bf.ddp_comm_hook(),
            data=torch.tensor([bf.rank()]),
        )
    with pytest.raises(TypeError, match="must be a process group or None, got str"):
        backward(nn.Linear(8, 2), bf.ddp_comm_hook(), state="gloo")
    name = ["gradient_allreduce", "bytegrad"][min(bf.rank(), 1)]
    with pytest.raises(
        bf.MismatchError, match=r"ddp_comm_hook: algorithm is Grad.* but ByteGrad on"
    ):
        backward(nn.Linear(8, 2), bf.ddp_comm_hook(name))


class Resumed:
    """A model in training, and what its checkpoint needs."""

    def __init__(self, hook):
        self.model, self.hook = make_model().double(), hook
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.003)
        self.ddp.register_comm_hook(None, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, steps):
        for step in steps:
            self.optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + bf.rank())
            x = torch.randn(5, 8, generator=generator, dtype=torch.float64)
            self.ddp(x).square().mean().backward()
            self.optimizer.step()
        return torch.cat([value.flatten() for value in values(self.model)])


def resume(warm):
    """Save a hook's state once its buckets are final, and before that."""

    def hook():
        options = {**ALGORITHM_OPTIONS["powersgd"], "warm_start": warm, "start_step": 1}
        return bf.ddp_comm_hook("powersgd", **options)

    whole = Resumed(hook()).train(range(6))
    for stop in (1, 4):
        first = Resumed(hook())
        first.train(range(stop))
        # A state that has not been used is still the state.
        kept = hook()
        kept.load_state_dict(first.hook.state_dict())
        for state in (kept.state_dict(), {}):
            second = Resumed(hook())
            second.model.load_state_dict(first.model.state_dict())
            if state:
                second.hook.load_state_dict(state)
            end = second.train(range(stop, 6))
            assert torch.allclose(whole, end, rtol=1e-9) == bool(state)
    first.hook.load_state_dict(second.hook.state_dict())
    assert first.hook.state_dict()["algorithm"]["rounds"] == 2
    with pytest.raises(ValueError, match=r"the key 'algorithm', got \[\]; load what"):
        first.hook.load_state_dict(hook().state_dict())
    other = bf.ddp_comm_hook("powersgd", rank=1, start_step=0, min_compression_rate=1.0)
    other.load_state_dict(first.hook.state_dict())
    with pytest.raises(ValueError, match="powersgd: the state has tensors 'right' for"):
        Resumed(other).train(range(1))


def several_cases():
    bf.init()
    for warm in (True, False):
        resume(warm)
    ours, theirs = train_branches(bf.ddp_comm_hook()), train_branches(None)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    two_models()
    uneven_inputs()
    groups_of_some_ranks()
    refuse()


def groups_of_some_ranks():
    """A group of some ranks, whose engine is asked for by a group of Gloo, too."""
    for backend in ("bluecomm", "gloo"):
        group = dist.new_group([0, 2], backend=backend)
        if bf.rank() == 1:
            continue
        model = nn.Linear(8, 1, bias=False)
        ddp = DistributedDataParallel(model, process_group=group)
        ddp.register_comm_hook(group, bf.ddp_comm_hook())
        ddp(torch.full((1, 8), float(bf.rank()))).sum().backward()
        assert model.weight.grad.unique().tolist() == [1.0]


def test_cases_of_ddp(tmp_path):
    run_torch_ranks(RANKS, several_cases, tmp_path)
