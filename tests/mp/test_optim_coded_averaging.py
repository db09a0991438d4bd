"""``low_precision_decentralized`` and ``choco`` beside their formulas, bit by bit."""

import copy

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import Codec, MinMaxUInt8, ScaledSign, TopK
from tests.support.coded_rounds import (
    LPD,
    STEPS,
    Layout,
    algorithm_of,
    choco_rounds,
    make,
    memory_of,
    ring_rounds,
    start_of,
    steps_of,
    take_step,
    values_of,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


class EveryOther(Codec):
    """Keeps every other value, exactly; the others in the next round."""

    name = "every_other"
    dtypes = (torch.float32,)

    def __init__(self, number=0):
        self.number = number % 2

    def at_round(self, number):
        return EveryOther(number)

    def encoded_nbytes(self, count, dtype):
        return 4 * ((count + 1) // 2)

    def encode(self, values, into):
        into.zero_()
        kept = values[self.number :: 2].contiguous().view(torch.uint8)
        into[: kept.numel()].copy_(kept)
        return bool(values.isfinite().all())

    def decode(self, encoded, into):
        into.zero_()
        kept = into[self.number :: 2]
        kept.copy_(encoded.clone().view(torch.float32)[: kept.numel()])


CASES = {
    "ring": (LPD, {}, torch.float32),
    "ring, float64": (LPD, {}, torch.float64),
    "ring, bfloat16": (LPD, {}, torch.bfloat16),
    "ring, every 2": (LPD, {"num_steps_per_communication": 2}, torch.float32),
    "choco": ("choco", {}, torch.float32),
    "choco, bfloat16": ("choco", {"gamma": 0.3}, torch.bfloat16),
    "sign": ("choco", {"codec": ScaledSign(), "gamma": 0.5}, torch.float32),
    "half": ("choco", {"codec": EveryOther(), "gamma": 0.5}, torch.float64),
}


def default_weights(size):
    """Return the weights that each rank gives on the default graph, its own first."""
    matrix = bf.mixing_matrix(bf.SymmetricExponentialGraph(size, base=2))
    found = []
    for rank in range(size):
        # As the exchange computes it, so that the weights sum to 1.
        weights = {rank: 1.0 - (1.0 - matrix[rank, rank])}
        for other in range(size):
            if other != rank and matrix[rank, other] > 0:
                weights[other] = matrix[rank, other]
        found.append(weights)
    return found


def expected(case, size):
    """Return the parameters of all ranks after each step."""
    algorithm, options, dtype = CASES[case]
    layout = Layout(dtype)
    if algorithm == LPD:
        average = ring_rounds(layout, [1] * size)
    else:
        codec = options.get("codec", MinMaxUInt8())
        gamma = options.get("gamma", 1.0)
        average = choco_rounds(layout, default_weights(size), codec, gamma)
    every = options.get("num_steps_per_communication", 1)
    return steps_of(average, layout, range(size), dtype, every)


# -- steps and checkpoints -------------------------------------------------------------


def train_and_resume(algorithm, options, dtype):
    """Return the parameters after every other step, and the state at the end.

    Checks that a training that is resumed after three steps ends alike.
    """
    model, optimizer = make(algorithm, options, dtype)
    seen, saved = [], None
    for step in range(STEPS):
        take_step(model, optimizer, step)
        if step % 2:  # otherwise the round is under way during the next step
            seen.append(values_of(model, optimizer))
        if step == 2:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    resumed, other = make(algorithm, options, dtype)
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    for step in range(3, STEPS):
        take_step(resumed, other, step)
    for one, same in zip(values_of(resumed, other), seen[-1], strict=True):
        assert torch.equal(one, same)
    return seen, memory_of(optimizer)


def train_all():
    return {case: train_and_resume(*arguments) for case, arguments in CASES.items()}


@pytest.mark.parametrize("machines", [[0, 0], [0, 0, 1, 1]])
def test_each_step_follows_the_formula_bit_by_bit(machines):
    size = len(machines)
    of_ranks = run_ranks(size, train_all, machines=machines)
    for case, (algorithm, _, _) in CASES.items():
        for number, stacked in enumerate(list(expected(case, size))[1::2]):
            for rank in range(size):
                got = of_ranks[rank][case][0][number]
                for one, same in zip(got, stacked[rank], strict=True):
                    assert torch.equal(one, same), (case, number, rank)
        if algorithm == LPD:
            for rank in range(size):
                check_copies(*(of_ranks[one][case][1] for one in (rank - 1, rank)))


def check_copies(left, own):
    """The copies of neighbors equal what these have published, bit by bit."""
    for name, copied in own["left"].items():
        assert torch.equal(copied, left["published"][name])
        assert torch.equal(left["right"][name], own["published"][name])


def agree():
    """Return the distance between the ranks' parameters after steps of size 0."""
    found = {}
    for case, arguments in CASES.items():
        model, optimizer = make(*arguments)
        optimizer.param_groups[0]["lr"] = 0.0
        for step in range(60):
            take_step(model, optimizer, step)
        found[case] = bf.consensus_distance(model), memory_of(optimizer)
    return found


def test_codecs_reach_consensus_and_s_stays_the_average():
    start = [
        torch.cat([one.flatten() for one in start_of(r, torch.float32)])
        for r in range(3)
    ]
    apart = float(torch.stack(start).std(0, correction=0).norm())
    of_ranks = run_ranks(3, agree)
    for case, (algorithm, *_) in CASES.items():
        # A bit per value lets them come no closer than a share of the largest values.
        bound = 0.3 if case == "sign" else 0.02
        assert of_ranks[0][case][0] < bound * apart, case
        if algorithm == "choco":
            kept = [one[case][1] for one in of_ranks]
            for name, mixed in kept[0]["mixed"].items():
                mean = sum(one["published"][name] for one in kept) / 3
                assert mixed.dtype == torch.float64
                torch.testing.assert_close(mixed, mean, rtol=0, atol=1e-13)


# -- values that cannot be sent --------------------------------------------------------


def spoil():
    """Give rank 0 a value that is not finite; its neighbors raise, too, and recover."""
    found = {}
    for name, bad in (("nan", float("nan")), ("large", 3e38), ("first", float("inf"))):
        for algorithm in (LPD, "choco"):
            options = {} if algorithm == LPD else {"topology": bf.RingGraph(4)}
            model, optimizer = make(algorithm, options, torch.float32)
            steps = 0 if name == "first" else 3
            for step in range(steps):
                take_step(model, optimizer, step)
            optimizer.synchronize()
            if bf.rank() == 0:
                with torch.no_grad():
                    model[1][7] = bad
                    model[1][8] = -bad
            take_step(model, optimizer, steps)
            raised = ""
            try:
                optimizer.synchronize()
            except FloatingPointError as error:
                raised = str(error)
            with torch.no_grad():
                if bf.rank() == 0:
                    model[1][7:9] = 0.0
            for step in range(4, 40):
                take_step(model, optimizer, step)
            values = values_of(model, optimizer)
            is_finite = all(bool(part.isfinite().all()) for part in values)
            found[name, algorithm] = raised, is_finite, memory_of(optimizer)
    return found


def test_a_value_that_is_not_finite_is_an_error_of_the_rank_and_its_neighbors():
    of_ranks = run_ranks(4, spoil, machines=[0, 0, 1, 1])
    for (name, algorithm), _ in of_ranks[0].items():
        for rank in (0, 1, 3):
            raised = of_ranks[rank][name, algorithm][0]
            assert f"so {algorithm} cannot send them: '1' on rank 0. " in raised, name
        assert of_ranks[2][name, algorithm][0] == ""
        assert all(one[name, algorithm][1] for one in of_ranks)
        if algorithm == LPD:
            for rank in range(4):
                check_copies(
                    *(of_ranks[one][name, algorithm][2] for one in (rank - 1, rank))
                )


def scale():
    """Let a GradScaler skip a step on rank 0."""
    model, optimizer = make("choco", {}, torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    for step in range(6):
        optimizer.zero_grad()
        values = torch.ones(()) * (float("inf") if (step, bf.rank()) == (2, 0) else 1)
        scaler.scale(sum((p * values).sum() for p in model)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == (2.0 if bf.rank() == 0 else 4.0)
    assert all(bool(part.isfinite().all()) for part in values_of(model, optimizer))


def test_a_grad_scaler_skips_the_step_and_not_the_round():
    run_ranks(2, scale)


# -- states that do not belong together ------------------------------------------------


def mix_states():
    """Load states of other steps, runs and graphs."""
    for algorithm in (LPD, "choco"):
        model, optimizer = make(algorithm, {}, torch.float32)
        take_step(model, optimizer, 0)
        early = copy.deepcopy(optimizer.state_dict())
        take_step(model, optimizer, 1)
        late = copy.deepcopy(optimizer.state_dict())
        # Rank 0 goes back to an earlier step.
        optimizer.load_state_dict(early if bf.rank() == 0 else late)
        take_step(model, optimizer, 2)
        wanted = r"rank \d is in round [12] of its state, and this rank in round [12]\."
        with pytest.raises(bf.MismatchError, match=wanted + " Load on all ranks"):
            optimizer.synchronize()
        # Rank 0 belongs to another run of as many rounds.
        _, other = make(algorithm, {}, torch.float32)
        for step in range(2):
            take_step(_, other, step)
        optimizer.load_state_dict(other.state_dict() if bf.rank() == 0 else late)
        model, optimizer = make(algorithm, {}, torch.float32)
        state = other.state_dict() if bf.rank() == 0 else late
        optimizer.load_state_dict(state)
        take_step(model, optimizer, 2)
        with pytest.raises(bf.MismatchError, match="this rank has no copy of"):
            optimizer.synchronize()
        # Without a state, all ranks begin anew.
        model, optimizer = make(algorithm, {}, torch.float32)
        optimizer.load_state_dict(
            {**late, "bluecomm": {**late["bluecomm"], "algorithm": {}}}
        )
        for step in range(3):
            take_step(model, optimizer, step)
        optimizer.synchronize()


def test_states_of_other_steps_and_runs_are_refused():
    run_ranks(3, mix_states)


def change_graph():
    """Change the graph while it trains; all ranks begin a new state."""
    bf.set_topology(bf.RingGraph(4), is_weighted=True)
    model, optimizer = make(
        "choco", {"codec": MinMaxUInt8(), "gamma": 1.0}, torch.float32
    )
    optimizer.param_groups[0]["lr"] = 0.0
    take_step(model, optimizer, 0)
    optimizer.synchronize()
    before = values_of(model, optimizer)
    bf.set_topology(bf.FullyConnectedGraph(4), is_weighted=True)
    # The first round of the new graph is exact.
    take_step(model, optimizer, 1)
    after = values_of(model, optimizer)
    means = [bf.allreduce(part) for part in before]
    for part, mean in zip(after, means, strict=True):
        torch.testing.assert_close(part, mean, rtol=1e-5, atol=1e-6)
    # A mean of all is no exchange of differences, and the state stays as it is.
    optimizer.communication_type = bf.CommunicationType.allreduce
    take_step(model, optimizer, 2)
    optimizer.communication_type = bf.CommunicationType.neighbor_allreduce
    take_step(model, optimizer, 3)
    optimizer.synchronize()
    assert algorithm_of(optimizer).state_dict()["progress"][1] == 2


def test_a_new_graph_begins_a_new_state():
    run_ranks(4, change_graph)


# -- ranks that run out of data, and options -------------------------------------------


def run_out():
    """Return the last rank to join, and the distance of the ranks afterwards."""
    found = []
    for algorithm in (LPD, "choco"):
        model, optimizer = make(algorithm, {"uneven_inputs": True}, torch.float32)
        for step in range(3 + 2 * bf.rank()):
            take_step(model, optimizer, step)
        found.append((optimizer.join(), memory_of(optimizer)))
    return found


def test_a_rank_without_data_continues_mixing():
    of_ranks = run_ranks(3, run_out)
    for rank in range(3):
        assert [last for last, _ in of_ranks[rank]] == [2, 2]
        check_copies(of_ranks[rank - 1][0][1], of_ranks[rank][0][1])


def refuse():
    with pytest.raises(TypeError, match=r"such as ScaledSign\(\), got 'sign'"):
        make("choco", {"codec": "sign"}, torch.float32)
    for gamma in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"above 0 and at most 1, got {gamma}"):
            make("choco", {"gamma": gamma}, torch.float32)
    with pytest.raises(ValueError, match="top_k: k=9000 needs a tensor of 9000"):
        make("choco", {"codec": TopK(9000)}, torch.float32)
    with pytest.raises(
        bf.MismatchError,
        match=r"codec is TopK\(k=5\) on rank 0, but TopK\(k=6\) on rank 1",
    ):
        make("choco", {"codec": TopK(5 + bf.rank())}, torch.float32)
    with pytest.raises(ValueError, match="choco needs the same topology in each round"):
        make("choco", {"topology": bf.topology.RandomMatchings(2)}, torch.float32)


def test_wrong_options_are_refused():
    run_ranks(2, refuse)
