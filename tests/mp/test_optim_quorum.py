"""``quorum_diloco`` beside its formula, for the schedule that a run happened on."""

import random
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.optim.wrapper import COORDINATOR_KEY
from tests.support.deadlines import hear, say, wait_until
from tests.support.dropped_models import check_dropped_models
from tests.support.own_pace import (
    check_equal,
    step_once,
    take_turns,
    train_with_stops,
)
from tests.support.ranks import run_ranks
from tests.support.training import (
    OPTIMIZERS,
    backward,
    flatten,
    make_model,
    tolerance_of,
    unflatten,
)

pytestmark = pytest.mark.mp

EVERY = 3
OPTIONS = {"num_steps_per_communication": EVERY, "outer_lr": 0.5, "outer_momentum": 0.6}


def wrap(model, optimizer="sgd", algorithm="quorum_diloco", **options):
    return bf.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()),
        model,
        algorithm=algorithm,
        **{**OPTIONS, **options},
    )


def algorithm_of(optimizer):
    return optimizer.__dict__[COORDINATOR_KEY].algorithm


def is_answered(optimizer):
    algorithm = algorithm_of(optimizer)
    return not algorithm._is_waiting or algorithm._link.is_answered()


def record(optimizer):
    """Return lists that get this rank's events, and the server's rounds."""
    algorithm, events, rounds = algorithm_of(optimizer), [], []
    send, apply = algorithm._send, algorithm._apply_answer

    def sending(**options):
        events.append("send")
        send(**options)

    def applying():
        events.append("apply")
        return apply()

    algorithm._send, algorithm._apply_answer = sending, applying
    if algorithm._server is not None:
        close = algorithm._server._rounds.close

        def closing():
            rounds.append(close())
            return rounds[-1]

        algorithm._server._rounds.close = closing
    return events, rounds


# -- the formula -----------------------------------------------------------------------

RANKS = 3
# Model, optimizer, quorum, passes per step.
CASES = {
    "one is enough": ("mlp", "adamw", 1, 1),
    "a majority": ("mlp", "momentum", None, 1),
    "all": ("mixed_types", "sgd", 3, 2),
    "unused": ("unused", "sgd", 2, 1),
}


def train_apart():
    """Train each case at a changing pace; return what the reference needs to follow."""
    rank, found = bf.rank(), {}
    for case, (kind, name, quorum, passes) in CASES.items():
        pace = random.Random(rank)
        model = make_model(kind, 0)
        optimizer = wrap(
            model, name, quorum=quorum, grace=0.1, backward_passes_per_step=passes
        )
        events, rounds = record(optimizer)
        seen, steps = [], 10 + 8 * rank
        for step in range(steps):
            time.sleep(0.004 * pace.random())
            if rank == RANKS - 1 and step == steps - EVERY:
                # However late the first answer comes, progress is sent after it.
                wait_until(partial(is_answered, optimizer), "no answer")
            step_once(model, optimizer, step, passes)
            seen.append((tuple(events), flatten(model)))
            events.clear()
        optimizer.abort()
        found[case] = seen, tuple(events), flatten(model), rounds
    return found


class Rank:
    """One rank of the reference, in float64 as the models are."""

    def __init__(self, number, case):
        kind, name, _, self.passes = CASES[case]
        self.number = number
        self.tolerance = tolerance_of(kind)
        self.model = make_model(kind, 0)
        self.optimizer = OPTIMIZERS[name](self.model.parameters())
        self.base = flatten(self.model)
        self.steps = 0
        self.sent = []  # progress and number of steps of each message
        self.answers = []

    def follow(self, events):
        """Do what the rank did; ask for a turn of others while an answer is missing."""
        for event in events:
            if event == "send":
                now = flatten(self.model)
                self.sent.append((self.base - now, self.steps))
                self.base, self.steps = now, 0
                continue
            assert event == "apply"
            while not self.answers:
                yield
            outer = self.answers.pop(0)
            unflatten(self.model, outer + (flatten(self.model) - self.base))
            self.base = outer

    def train(self, seen, last):
        for step, (events, got) in enumerate(seen):
            self.optimizer.zero_grad()
            backward(self.model, self.number, step, self.passes)
            self.optimizer.step()
            self.steps += 1
            yield from self.follow(events)
            torch.testing.assert_close(flatten(self.model), got, **self.tolerance)
        yield from self.follow(last)


def serve(ranks, rounds):
    """Make the outer steps of the recorded rounds; each message counts once."""
    outer = ranks[0].base.clone()
    momentum = torch.zeros_like(outer)
    used = [0] * len(ranks)
    for number, closed in enumerate(rounds):
        assert closed.number == number
        while any(used[member] == len(ranks[member].sent) for member in closed.members):
            yield
        messages = [ranks[member].sent[used[member]] for member in closed.members]
        for member in closed.members:
            used[member] += 1
        total = sum(steps for _, steps in messages)
        if total:
            mean = sum(progress * steps for progress, steps in messages) / total
            momentum = OPTIONS["outer_momentum"] * momentum + mean
            change = mean + OPTIONS["outer_momentum"] * momentum
            outer = outer - OPTIONS["outer_lr"] * change
        for member in closed.members:
            ranks[member].answers.append(outer)
    assert used == [len(rank.sent) for rank in ranks]
    assert rounds[-1].all_end
    assert not any(closed.all_end for closed in rounds[:-1])


@pytest.fixture(scope="module")
def trained():
    return run_ranks(RANKS, train_apart)


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_the_formula(case, trained):
    of_ranks = [found[case] for found in trained]
    ranks = [Rank(number, case) for number in range(RANKS)]
    rounds = of_ranks[0][3]
    turns = [
        serve(ranks, rounds),
        *(
            rank.train(seen, last)
            for rank, (seen, last, _, _) in zip(ranks, of_ranks, strict=True)
        ),
    ]
    take_turns(turns)
    for rank, (_, _, end, _) in zip(ranks, of_ranks, strict=True):
        torch.testing.assert_close(flatten(rank.model), end, **rank.tolerance)
        assert torch.equal(end, of_ranks[0][2])
    quorum = CASES[case][2] or 2
    assert all(len(closed.members) >= quorum for closed in rounds)
    # The first and the last one, and one for the last steps of rank 2.
    assert len(rounds) >= 3


# -- who waits for whom ----------------------------------------------------------------


def straggle(folder, slow):
    """Let the others take all their steps, and rounds, before a rank's first step."""
    folder = Path(folder)
    model = make_model("mlp", 0)
    optimizer = wrap(model, quorum=2, grace=0.0)
    _, rounds = record(optimizer)
    if bf.rank() == slow:
        hear(folder, "finished")
    for step in range(3 * EVERY):
        step_once(model, optimizer, step)
        if bf.rank() != slow and step % EVERY == EVERY - 1:
            # It is answered although one rank has sent nothing.
            wait_until(lambda: is_answered(optimizer), "a round does not close")
    others = bf.ProcessSet([rank for rank in range(3) if rank != slow])
    if bf.rank() != slow:
        bf.barrier(process_set=others)
        say(folder, "finished")
    bf.shutdown()
    return flatten(model), rounds


def test_a_straggler_slows_nobody_and_all_end_equal(tmp_path):
    of_ranks = run_ranks(3, straggle, str(tmp_path), 2)
    first = of_ranks[0][0]
    assert all(torch.equal(first, values) for values, _ in of_ranks)
    members = [closed.members for closed in of_ranks[0][1]]
    assert members[:3] == [(0, 1)] * 3
    # The straggler's progress was late, and counted in later rounds.
    assert any(2 in each for each in members[3:])


def serve_while_computing(folder):
    """Close a round of ranks 1 and 2 while rank 0, the server, takes no step."""
    folder = Path(folder)
    model = make_model("mlp", 0)
    optimizer = wrap(model, quorum=2, grace=0.0, num_steps_per_communication=1)
    if bf.rank() == 0:
        # It begins to serve with its first step, and has no progress of its own then.
        algorithm_of(optimizer).before_step()
        hear(folder, "answered 1")
        hear(folder, "answered 2")
    else:
        step_once(model, optimizer, 0)
        wait_until(lambda: is_answered(optimizer), "the server waits for a step")
        say(folder, f"answered {bf.rank()}")
    optimizer.abort()
    return flatten(model)


def test_the_server_serves_between_its_steps(tmp_path):
    check_equal(run_ranks(3, serve_while_computing, str(tmp_path)))


def test_a_dropped_model_lives_until_all_ranks_have_ended():
    run_ranks(2, check_dropped_models, wrap)


# -- errors ----------------------------------------------------------------------------


def break_down():
    """Make the parameters of rank 1 NaN, in a step and before it ends."""
    model = make_model("mlp", 0)
    optimizer = wrap(model, quorum=3, grace=0.0)
    for part in range(2):
        for step in range(EVERY - 1):
            step_once(model, optimizer, step)
        before = flatten(model)
        if bf.rank() == 1:
            with torch.no_grad():
                model[2].bias[1] = torch.nan
        finish = optimizer.abort if part else lambda: step_once(model, optimizer, 9)
        if bf.rank() == 1:
            with pytest.raises(
                FloatingPointError, match=r"of rank 1 is not .*'2\.bias'.*, so"
            ):
                finish()
            assert flatten(model).isfinite().all()
            assert part or not torch.equal(before, flatten(model))
        else:
            finish()
    optimizer.resume()
    for step in range(2 * EVERY):
        step_once(model, optimizer, step)
    optimizer.abort()
    return flatten(model)


def test_progress_that_is_not_finite_stays_on_its_rank():
    check_equal(run_ranks(3, break_down))


def fail():
    """Let the outer step of rank 0 fail."""
    model = make_model("mlp", 0)
    optimizer = wrap(model, quorum=1, grace=0.0, num_steps_per_communication=1)
    if bf.rank() == 0:

        def close():
            raise MemoryError("no memory is left")

        algorithm_of(optimizer)._server._rounds.close = close
    else:
        try:
            step_once(model, optimizer, 0)
        except RuntimeError:
            pass  # the answer came within the step
        else:
            wait_until(lambda: is_answered(optimizer), "nobody tells of the error")
    text = {0: "no memory is left"}.get(
        bf.rank(), r"rank 0 makes the outer .* MemoryError: no memory .* a checkpoint"
    )
    for step in range(2):
        with pytest.raises((RuntimeError, MemoryError), match=text):
            step_once(model, optimizer, step)
    with pytest.raises((RuntimeError, MemoryError), match=text):
        optimizer.abort()
    # Rank 0 answers messages that come after the error, too.
    bf.barrier()


def test_an_error_of_the_server_is_an_error_on_all_ranks():
    run_ranks(3, fail)


def refuse():
    model = nn.Linear(2, 2)
    for options, error, text in (
        ({"quorum": 0}, ValueError, "quorum must be at least 1, got 0"),
        ({"quorum": 1.5}, TypeError, r"quorum must be an integer, got 1\.5"),
        ({"quorum": 3}, ValueError, "needs as many ranks, but there are 2"),
        ({"grace": -1}, ValueError, "grace must be at least 0, got -1"),
        ({"outer_lr": 0}, ValueError, "outer_lr must be above 0, got 0"),
        ({"quorum": 1 + bf.rank()}, bf.MismatchError, "quorum"),
    ):
        with pytest.raises(error, match=text):
            wrap(model, **options)
    optimizer = wrap(model, num_steps_per_communication=1, quorum=2)
    with pytest.raises(ValueError, match=r"stops; call optimizer\.abort\(\) where"):
        optimizer.join()
    state = optimizer.state_dict()
    if bf.rank() == 1:
        # Rank 0 takes no step, so there is no quorum.
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match="cannot load a state while progress is"):
            optimizer.load_state_dict(state)
    bf.barrier()
    optimizer.abort()
    optimizer.load_state_dict(state)


def test_wrong_options_and_calls_are_refused():
    run_ranks(2, refuse)


# -- types, checkpoints, other algorithms ----------------------------------------------


def train_in_step(model, optimizer, steps):
    """Train, and apply each answer before the next step."""
    for step in steps:
        step_once(model, optimizer, step)
        wait_until(lambda: is_answered(optimizer), "a round does not close")
        algorithm_of(optimizer)._take_answer()
    return flatten(model)


def resume():
    """Train at once, and with a stop after a round, in a round, and between both."""
    stops = (0, EVERY + 2, 2 * EVERY)
    return train_with_stops(
        stops,
        4 * EVERY,
        lambda model: wrap(model, "momentum", quorum=2),
        train_in_step,
    )


def test_resumed_equals_uninterrupted():
    for ends in run_ranks(2, resume):
        torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=0)


def switch():
    """Change the algorithm of a model that is being trained."""
    model = make_model("mlp", 0)
    for name in ("gradient_allreduce", "quorum_diloco", "local_sgd", "quorum_diloco"):
        options = {} if name == "quorum_diloco" else {"algorithm": name}
        if options:
            optimizer = bf.DistributedOptimizer(
                OPTIMIZERS["sgd"](model.parameters()), model, **options
            )
        else:
            optimizer = wrap(model)
        for step in range(EVERY + 1 + bf.rank() if not options else 3):
            step_once(model, optimizer, step)
    bf.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model)
    return flatten(model)


def test_switching_on_a_live_model_leaves_equal_parameters():
    check_equal(run_ranks(3, switch))


def train_alone_and_in_16_bits():
    """Return results in a world of one, and of 16-bit parameters."""
    found = []
    for name in ("quorum_diloco", "diloco"):
        model = make_model("mlp", 0)
        optimizer = wrap(model, algorithm=name)
        for step in range(2 * EVERY):
            step_once(model, optimizer, step)
        optimizer.synchronize()
        found.append(flatten(model))
    half = nn.Linear(1, 40, bias=False).to(torch.bfloat16)
    nn.init.constant_(half.weight, 3.0)
    start = half.weight.detach().clone()
    steps = 0.0437 * torch.arange(40).unsqueeze(1)
    optimizer = wrap(half, num_steps_per_communication=1, outer_momentum=0.0)
    half.weight.grad = torch.zeros_like(half.weight)
    optimizer.step()
    with torch.no_grad():
        half.weight += steps
    progress = (start - half.weight.detach()).float()
    optimizer.step()
    outer = start.float() - 0.5 * progress
    return found, half.weight.detach(), outer.to(torch.bfloat16)


def test_a_world_of_one_and_16_bits():
    (((alone, diloco), half, outer),) = run_ranks(1, train_alone_and_in_16_bits)
    torch.testing.assert_close(alone, diloco)
    assert torch.equal(half, outer)
