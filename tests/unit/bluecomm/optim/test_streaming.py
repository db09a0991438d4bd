"""Fragments that travel while training goes on, in a world of one."""

import copy
import itertools

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import E3M0
from bluecomm.optim.fragments import divide
from bluecomm.optim.wrapper import COORDINATOR_KEY
from tests.support.logistic import Logistic, data_of, start_of

RATE = 0.3


def make(**options):
    """Return a model and its optimizer; rounds of four steps by default."""
    model = Logistic(start_of(0))
    sgd = torch.optim.SGD(model.parameters(), RATE)
    options = {"num_steps_per_communication": 4, **options}
    return model, bf.DistributedOptimizer(
        sgd, model, algorithm="diloco", outer_lr=1.0, outer_momentum=0.0, **options
    )


def train(model, optimizer, steps):
    features, labels = (torch.as_tensor(each) for each in data_of(0))
    for _ in range(steps):
        optimizer.zero_grad()
        model(features, labels).backward()
        optimizer.step()


def after(steps, **options):
    """Return the parameters after some steps, without an outer optimizer by default."""
    model = Logistic(start_of(0))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    if options:
        model, optimizer = make(**options)
    train(model, optimizer, steps)
    if options:
        optimizer.synchronize()
    return model.vector.detach().clone()


# -- when a result is applied ----------------------------------------------------------


def test_steps_during_the_overlap_are_lost_without_mixing(world):
    torch.testing.assert_close(after(5, overlap=2), after(5))
    # The mean of step 4 replaces the parameters after step 6.
    torch.testing.assert_close(after(6, overlap=2), after(4))
    torch.testing.assert_close(after(9, overlap=2), after(7))


def test_a_rank_keeps_a_share_of_its_own_parameters(world):
    got = after(6, overlap=2, mixing=0.25)
    torch.testing.assert_close(got, 0.75 * after(4) + 0.25 * after(6))


def test_each_fragment_has_its_turn(world):
    model, optimizer = make(fragments=2)
    rounds = []
    for _ in range(8):
        train(model, optimizer, 1)
        optimizer.synchronize()
        memory = optimizer.state_dict()["bluecomm"]["algorithm"]["memory"]["before"]
        rounds.append({n: v.tolist() for n, v in memory.items()})
    changes = [
        {name for name in new if new[name] != old[name]}
        for old, new in itertools.pairwise(rounds)
    ]
    assert changes == [{"first"}, set(), {"rest"}, set(), {"first"}, set(), {"rest"}]


def test_one_rank_sends_no_codes(world):
    coded = after(9, overlap=1, codec=E3M0(), error_feedback=1.0)
    assert torch.equal(coded, after(9, overlap=1))


def test_buckets_stay_while_fragments_travel(world):
    _, optimizer = make(overlap=1)
    assert not vars(optimizer)[COORDINATOR_KEY].algorithm.rebuckets


def test_several_forward_passes_per_step_end_a_round_early(world):
    model, optimizer = make(overlap=3)
    features, labels = (torch.as_tensor(each) for each in data_of(0))
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(4):
            model(features, labels).backward()
        optimizer.step()
    # Every step has a round, and the result of a round is applied in the next step.
    state = optimizer.state_dict()["bluecomm"]["algorithm"]
    assert state["age"] == 0
    assert state["sent"].keys() == {"first", "rest"}


def finish_by_shutdown(model, optimizer):
    bf.shutdown()
    bf.init()


def finish_by_another_optimizer(model, optimizer):
    sgd = torch.optim.SGD(model.parameters(), RATE)
    bf.DistributedOptimizer(sgd, model, algorithm="gradient_allreduce")


@pytest.mark.parametrize("finish", [finish_by_shutdown, finish_by_another_optimizer])
def test_a_fragment_in_flight_is_applied_at_the_end(world, finish):
    model, optimizer = make(overlap=3)
    train(model, optimizer, 5)
    finish(model, optimizer)
    torch.testing.assert_close(model.vector.detach(), after(4))


# -- checkpoints -----------------------------------------------------------------------


def test_a_round_under_way_is_dropped_when_a_state_is_loaded(world):
    model, optimizer = make(overlap=3)
    train(model, optimizer, 2)
    states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 3)
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    optimizer.synchronize()
    torch.testing.assert_close(model.vector.detach(), after(2))
    train(model, optimizer, 6)
    optimizer.synchronize()
    assert torch.equal(model.vector, after(8, overlap=3))


def test_a_round_under_way_needs_the_same_fragments(world):
    model, optimizer = make(overlap=3)
    train(model, optimizer, 4)
    state = optimizer.state_dict()
    _, other = make(overlap=1, fragments=2)
    with pytest.raises(ValueError, match=r"saved while a .* under way, of first, rest"):
        other.load_state_dict(state)


# -- options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"fragments": 3}, ValueError, r"diloco cannot .*=4 among .*=3; use 3 or 6"),
        ({"fragments": 8}, ValueError, r"among fragments=8; use 8 steps"),
        ({"fragments": 4}, ValueError, r"fragments=4 needs .* has 2 parameters; use"),
        ({"overlap": 4}, ValueError, r"overlap=4 needs more than 4 .* leaves 4; use"),
        ({"fragments": 2, "overlap": 2}, ValueError, r"with fragments=2 leaves 2"),
        ({"fragments": 2, "groups": 1}, ValueError, r"groups= or fragments=, because"),
        ({"fragments": 0}, ValueError, r"fragments must be at least 1, got 0"),
        ({"fragments": True}, TypeError, r"fragments must be an integer, got True"),
        ({"overlap": -1}, ValueError, r"overlap must be at least 0, got -1"),
        ({"overlap": 1.0}, TypeError, r"overlap must be an integer, got 1\.0"),
        ({"codec": "e3m0"}, TypeError, r"such as E3M0\(\), got 'e3m0'"),
        ({"error_feedback": 0.9}, ValueError, r"error_feedback needs a codec="),
        (
            {"codec": E3M0(), "error_feedback": 2.0},
            ValueError,
            r"error_feedback must be from 0 to 1, got 2\.0",
        ),
        ({"mixing": 1.0}, ValueError, r"mixing must be at least 0 and less than 1"),
    ],
)
def test_unsuitable_options_are_refused(world, options, error, text):
    with pytest.raises(error, match=text):
        make(**options)


def test_fragments_are_consecutive_and_about_equal():
    def sizes(lengths, fragments):
        named = [(str(k), torch.zeros(n)) for k, n in enumerate(lengths)]
        found = divide(named, fragments)
        of_each = [found[id(parameter)] for _, parameter in named]
        assert of_each == sorted(of_each)
        return [
            sum(n for n, f in zip(lengths, of_each, strict=True) if f == fragment)
            for fragment in range(fragments)
        ]

    assert sizes([4] * 12, 3) == [16, 16, 16]
    assert sizes([4] * 10, 4) == [12, 12, 8, 8]
    # A large parameter has a fragment of its own, and none is empty.
    assert sizes([100, 1, 1, 1], 3) == [100, 2, 1]
    assert sizes([1, 1, 100], 3) == [1, 1, 100]
    assert sizes([0, 0, 5], 2) == [0, 5]
