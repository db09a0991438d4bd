"""``diloco`` with a codec beside its formula, bit by bit.

The gradients do not depend on the parameters, so one process can compute those of all
ranks. All numbers are float32 and are combined in the order of the algorithm.
"""

import copy
import re

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.compression import E3M0, ChunkedTopK
from tests.support.ranks import run_ranks
from tests.unit.bluecomm.compression.test_e3m0 import oracle

pytestmark = pytest.mark.mp

RANKS, RATE, LR, MOMENTUM, H, STEPS = 3, 0.1, 0.7, 0.5, 4, 11
SHAPES = {"small": (5,), "large": (40, 11)}
# Each parameter has a bucket of its own, and so has each of two fragments.
PLAIN = {"codec": E3M0(), "bucket_bytes": 8}
STREAMING = {
    "codec": E3M0(),
    "error_feedback": 0.9,
    "fragments": 2,
    "overlap": 1,
    "mixing": 0.5,
}
CASES = {"plain": PLAIN, "streaming": STREAMING}


def gradient_of(rank, step, name):
    generator = torch.Generator().manual_seed(1000 * rank + 2 * step + len(name))
    return torch.randn(SHAPES[name], generator=generator)


def make(algorithm="diloco", **options):
    """Return a model that is equal on all ranks, and its optimizer."""
    torch.manual_seed(1)
    model = nn.ParameterDict({k: torch.randn(shape) for k, shape in SHAPES.items()})
    sgd = torch.optim.SGD(model.parameters(), RATE)
    options = {"outer_lr": LR, "outer_momentum": MOMENTUM, **options}
    return model, bf.DistributedOptimizer(
        sgd, model, algorithm=algorithm, num_steps_per_communication=H, **options
    )


def train(model, optimizer, first, end):
    for step in range(first, end):
        optimizer.zero_grad()
        for name, parameter in model.items():
            parameter.grad = gradient_of(bf.rank(), step, name)
        optimizer.step()
    optimizer.synchronize()


def values_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.items()}


def memory_of(optimizer, name="before"):
    return optimizer.state_dict()["bluecomm"]["algorithm"]["memory"][name]


# -- the formula -----------------------------------------------------------------------


def codes_of(values):
    """Return what all ranks decode of a flat tensor, without the padding behind it."""
    back = oracle(values.flatten().numpy(), 256)[1]
    return torch.from_numpy(back).view(values.shape)


def reference(options):
    """Return the parameters of all ranks after all steps, and the outer ones."""
    torch.manual_seed(1)
    p = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    x = [{name: value.clone() for name, value in p.items()} for _ in range(RANKS)]
    m = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    e = [{name: torch.zeros(s) for name, s in SHAPES.items()} for _ in range(RANKS)]
    fragments, mixing = options.get("fragments", 1), options.get("mixing", 0.0)
    # A ParameterDict sorts its names.
    parts = [["large"], ["small"]] if fragments == 2 else [["large", "small"]]
    due, sent = None, {}
    for step in range(STEPS):
        for rank in range(RANKS):
            for name in SHAPES:
                x[rank][name].add_(gradient_of(rank, step, name), alpha=-RATE)
        rounds, rest = divmod(step + 1, H // fragments)
        if not rest:
            due = step + options.get("overlap", 0)
            sent = {
                name: [
                    (-x[r][name] + p[name]).add(
                        e[r][name], alpha=options.get("error_feedback", 0.0)
                    )
                    for r in range(RANKS)
                ]
                for name in parts[(rounds - 1) % fragments]
            }
        if step == due:
            for name, of_ranks in sent.items():
                codes = [codes_of(values) for values in of_ranks]
                for r in range(RANKS):
                    e[r][name] = of_ranks[r] - codes[r]
                mean = sum(codes[1:], codes[0].clone()) / RANKS
                m[name].mul_(MOMENTUM).add_(mean)
                step_of_p = mean.add(m[name], alpha=MOMENTUM).mul(-LR)
                p[name] = step_of_p + p[name]
                for r in range(RANKS):
                    kept = x[r][name].mul(mixing)
                    x[r][name] = kept.add(p[name], alpha=1 - mixing)
    return x, p


# -- one job ---------------------------------------------------------------------------


def resume(options):
    """Return the parameters with a restart at step 4, when a round is under way."""
    model, optimizer = make(**options)
    train(model, optimizer, 0, 4)
    states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    in_flight = states[1]["bluecomm"]["algorithm"]["sent"]
    model, optimizer = make(**options)
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    train(model, optimizer, 4, STEPS)
    return values_of(model), sorted(in_flight)


def fail_with_nan(bad):
    """Return the error of a rank whose parameters became NaN, and what is left."""
    model, optimizer = make(codec=E3M0())
    train(model, optimizer, 0, 1)
    before = memory_of(optimizer)
    if bf.rank() == 1:
        with torch.no_grad():
            model["large"][7, 3] = bad
    with pytest.raises(FloatingPointError) as caught:
        train(model, optimizer, 1, H)
    after = memory_of(optimizer)
    same = all(torch.equal(before[name], after[name]) for name in SHAPES)
    return str(caught.value), same


def join():
    """Return the last rank to join, and the outer parameters."""
    model, optimizer = make(codec=E3M0(), uneven_inputs=True)
    train(model, optimizer, 0, 5 + bf.rank())
    return optimizer.join(), memory_of(optimizer)


def refuse():
    """Check the errors of options that differ or do not suit."""
    with pytest.raises(
        bf.MismatchError, match=r"codec is E3M0\(chunk=2\) on rank 0, but E3M0\(chunk=4"
    ):
        make(codec=E3M0(2 + 2 * bf.rank()))
    model, optimizer = make(codec=E3M0())
    optimizer.communication_type = bf.CommunicationType.neighbor_allreduce
    with pytest.raises(ValueError, match="codec= does not go with communication_type"):
        train(model, optimizer, 0, H)


def run_all():
    found = {}
    for name, options in CASES.items():
        model, optimizer = make(**options)
        train(model, optimizer, 0, STEPS)
        found[name] = values_of(model), memory_of(optimizer), *resume(options)
    model, optimizer = make(**STREAMING)
    train(model, optimizer, 0, 5)
    # Another algorithm takes over while codes travel, and then this one again.
    plain = torch.optim.SGD(model.parameters(), RATE)
    optimizer = bf.DistributedOptimizer(plain, model, algorithm="local_sgd")
    train(model, optimizer, 5, 6)
    found["taken over"] = values_of(model)
    model, optimizer = make(codec=ChunkedTopK(3), error_feedback=1.0)
    train(model, optimizer, 0, STEPS)
    found["other codec"] = memory_of(optimizer), memory_of(optimizer, "error")
    found["nan"] = fail_with_nan(float("nan"))
    found["inf"] = fail_with_nan(float("inf"))
    found["join"] = join()
    refuse()
    return found


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(RANKS, run_all)


@pytest.mark.parametrize("case", CASES)
def test_parameters_follow_the_formula_bit_by_bit(ranks, case):
    x, p = reference(CASES[case])
    for number, found in enumerate(ranks):
        for name in SHAPES:
            assert torch.equal(found[case][0][name], x[number][name]), name
            assert torch.equal(found[case][1][name], p[name]), name


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_one_that_was_not_interrupted(ranks, case):
    for found in ranks:
        straight, _, resumed, in_flight = found[case]
        assert in_flight == (["small"] if case == "streaming" else [])
        assert all(torch.equal(straight[name], resumed[name]) for name in SHAPES)


def test_all_ranks_hold_the_same_bits(ranks):
    for found in ranks[1:]:
        for name in SHAPES:
            assert torch.equal(found["taken over"][name], ranks[0]["taken over"][name])
            one, other = found["other codec"][0], ranks[0]["other codec"][0]
            assert torch.equal(one[name], other[name])
            assert torch.equal(found["join"][1][name], ranks[0]["join"][1][name])
    assert [found["join"][0] for found in ranks] == [2] * RANKS


def test_what_codes_lose_is_kept(ranks):
    errors = [float(found["other codec"][1]["large"].norm()) for found in ranks]
    assert len(set(errors)) == RANKS
    assert min(errors) > 0


@pytest.mark.parametrize("case", ["nan", "inf"])
def test_progress_that_is_not_finite_is_an_error_on_all_ranks(ranks, case):
    for found in ranks:
        text, same = found[case]
        assert re.search(r"parameters are not finite: 'large' on rank 1\.", text)
        assert same
