"""Autotuning while a model trains on several ranks."""

import json
import sys

import pytest
import torch

import bluecomm as bf
from bluecomm.optim.autotune.search import Interval
from bluecomm.optim.autotune.space import Space
from bluecomm.optim.autotune.tuning import Tuning
from bluecomm.runtime import current_communicator
from tests.support.ranks import run_ranks
from tests.support.tuned_training import QUICK, coordinator_of, make, train

pytestmark = pytest.mark.mp

KIB = 1 << 10


def train_both(algorithms):
    """Train with and without autotuning; the environment asks for it."""
    found = {}
    for name in algorithms:
        plain, options, _ = train(algorithm=name, autotune=False)
        assert len(set(options)) == 1
        found[name] = (plain, *train(algorithm=name))
    return found


ALGORITHMS = ["gradient_allreduce", "gradient_tracking"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("autotune")
    environment = {
        **QUICK,
        "BLUECOMM_AUTOTUNE": "1",
        "BLUECOMM_AUTOTUNE_FILE": str(folder / "tuned.json"),
    }
    return folder, run_ranks(4, train_both, ALGORITHMS, environment=environment)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_is_the_same_bit_for_bit(name, trained):
    for of_rank in trained[1]:
        plain, tuned, _, is_over = of_rank[name]
        assert is_over
        assert torch.isfinite(plain).all()
        assert torch.equal(plain, tuned)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_ranks_change_their_buckets_in_the_same_step(name, trained):
    first, *others = [of_rank[name][2] for of_rank in trained[1]]
    assert all(options == first for options in others)
    assert len({bucket_bytes for bucket_bytes, _ in first}) == 3


def test_writes_the_trials_to_the_file(trained):
    folder, of_ranks = trained
    entries = json.loads((folder / "tuned.json").read_text())["optimizers"]
    # The optimizers without autotuning have the even numbers.
    assert sorted(entries) == ["optim.1", "optim.3"]
    entry = entries["optim.1"]
    assert entry["facts"]["ranks"] == "4"
    assert entry["facts"]["algorithm"] == "gradient_allreduce"
    assert len(entry["trials"]) == 2
    last = of_ranks[0]["gradient_allreduce"][2][-1]
    assert entry["setting"] == {"bucket_bytes": last[0]}


# -- reuse, and what is refused --------------------------------------------------------


def attempt(error, **options):
    """Return the text of the error that making an optimizer raises."""
    with pytest.raises(error) as caught:
        make(**options)
    return str(caught.value)


class Keeps:
    """Decides to end, and keeps the rounds that it is told of."""

    def report(self, rounds):
        self.rounds = rounds
        return Interval({"bucket_bytes": 2}, 0)


def report_uneven_rounds():
    """Return what the first rank learns of two rounds, and the changes on all."""
    rank, changes = bf.rank(), []
    # The first round takes longest on rank 2, and the second one on rank 1.
    first_s, second_s = [(1.0, 2.0), (3.0, 5.0), (4.0, 1.0), (2.0, 2.0)][rank]
    now = iter([0.0, first_s, first_s + second_s])
    space = Space({"bucket_bytes": [1, 2]}, {"bucket_bytes": 1})
    decider = Keeps() if rank == 0 else None
    comm = current_communicator()
    tuning = Tuning(comm, "uneven", space, decider, clock=lambda: next(now))
    tuning.begin()
    tuning.on_round(changes.append)
    if rank == 3:
        tuning.interrupt()
    tuning.on_round(changes.append)
    assert tuning.is_over
    assert changes == [{"bucket_bytes": 2}]
    return decider and [(one.seconds, one.is_interrupted) for one in decider.rounds]


def take_over_from_a_search(model, optimizer):
    """Retire an optimizer whose search has the turn, and hold it; another one runs."""
    tuning = coordinator_of(optimizer)._tuning
    if bf.rank() == 0:
        assert tuning._decider._turns.take(tuning._decider)
    del tuning
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    later = coordinator_of(bf.DistributedOptimizer(sgd, model, autotune=True))
    if bf.rank() == 0:
        assert later._tuning._decider._turns.take(later._tuning._decider)


def reuse_and_refuse():
    """Use a result without another search; return it and the errors by case."""
    make()
    sys.modules["optuna"] = None
    try:
        values, used, is_over = train(4, autotune=True)
        optuna = attempt((ImportError, bf.MismatchError), autotune=True)
    finally:
        del sys.modules["optuna"]
    errors = {
        "optuna": optuna,
        "type": attempt(TypeError, autotune=1),
        "windows": attempt(ValueError, autotune=True, algorithm="win_put"),
        "no buckets": attempt(ValueError, autotune=True, algorithm="local"),
        "groups": attempt(ValueError, autotune=True, groups=2),
        "on one rank": attempt(bf.MismatchError, autotune=bf.rank() == 1),
    }
    model, optimizer = make(autotune=True)
    interrupted = []
    for training in (True, False):
        model.train(training)
        model(torch.ones(1, 4, dtype=torch.float64))
        interrupted.append(coordinator_of(optimizer)._tuning._times._is_interrupted)
    assert interrupted == [False, True]
    with pytest.raises(ValueError, match="join: autotune is measuring") as caught:
        optimizer.join()
    errors["join"] = str(caught.value)
    take_over_from_a_search(model, optimizer)
    return values, used, is_over, errors, report_uneven_rounds()


@pytest.fixture(scope="module")
def reused(trained):
    path = trained[0] / "tuned.json"
    document = json.loads(path.read_text())
    entry = document["optimizers"]["optim.1"]
    entry["setting"] = {"bucket_bytes": 256 * KIB, "compression": "fp16"}
    choices = entry["facts"]["choices"]
    entry["facts"]["choices"] = choices[:-1] + ", 'compression': ['none', 'fp16']}"
    path.write_text(json.dumps(document))
    environment = {
        **QUICK,
        "BLUECOMM_AUTOTUNE_FILE": str(path),
        "BLUECOMM_AUTOTUNE_COMPRESSION": "1",
    }
    return run_ranks(4, reuse_and_refuse, environment=environment)


def test_uses_the_result_of_the_file_from_the_third_round_on(reused):
    for values, used, is_over, *_ in reused:
        assert is_over
        assert [compression for _, compression in used] == [
            "NoneCompressor",
            *["FP16Compressor"] * 3,
        ]
        assert [bucket_bytes for bucket_bytes, _ in used[1:]] == [256 * KIB] * 3
        assert torch.equal(values, reused[0][0])


def test_the_slowest_rank_counts_in_each_round(reused):
    seen = [of_rank[-1] for of_rank in reused]
    assert seen == [[(4.0, False), (5.0, True)], None, None, None]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("type", "autotune must be True, False or None, got 1"),
        ("windows", "the algorithm win_put has no buckets that can change while"),
        ("no buckets", "the algorithm local has no buckets that can change"),
        ("groups", "autotune=True, but groups= says which parameters"),
        ("on one rank", "autotune is off on ranks 0, 2-3, but {'bucket_bytes'"),
        ("join", "use the result of an earlier job"),
    ],
)
def test_refuses_on_all_ranks(case, text, reused):
    for _, _, _, errors, _ in reused:
        assert text in errors[case]


def test_a_missing_package_on_rank_0_is_an_error_on_all(reused):
    for _, _, _, errors, _ in reused:
        assert "needs the package optuna" in errors["optuna"]
        assert "pip install 'bluecomm[autotune]'" in errors["optuna"]
