"""The search of autotuning, on a synthetic loop with a clock of its own."""

import itertools
import math
import random

import pytest

from bluecomm.optim.autotune.optuna_sampler import OptunaSampler
from bluecomm.optim.autotune.round_times import RoundTimes
from bluecomm.optim.autotune.search import Limits, RoundTime, Search
from bluecomm.optim.autotune.space import Space, bucket_sizes, in_words

MIB = 1 << 20
SIZES = bucket_sizes(200 * MIB, 4 * MIB)
DEFAULT = {"bucket_bytes": 4 * MIB}
SPACE = Space({"bucket_bytes": SIZES}, DEFAULT)
LIMITS = Limits(trials=12, warmup_s=1.0, sample_s=4.0)


class InOrder:
    """Proposes all settings but the default, in order."""

    def __init__(self, space):
        every = itertools.product(*map(range, map(len, space.choices.values())))
        self._left = [s for s in map(space.at, every) if s != space.default]
        self.learned = []

    def propose(self):
        return self._left.pop(0) if self._left else None

    def learn(self, setting, speed):
        self.learned.append((setting, speed))


class Loop:
    """A training loop whose rounds last as long as a function says."""

    def __init__(self, seconds_of):
        self.now_s = 0.0
        self.decisions = []
        self.seconds_of = seconds_of

    def run(self, search):
        while search.decision.rounds:
            decision = search.decision
            self.decisions.append(decision)
            rounds = []
            for _ in range(decision.rounds):
                one = self.seconds_of(decision.setting, self.now_s)
                if not isinstance(one, RoundTime):
                    one = RoundTime(one)
                self.now_s += one.seconds
                rounds.append(one)
            search.report(rounds)
        return search.decision.setting

    def settings(self):
        """Return the settings in the order in which they came, without repetitions."""
        return [s for s, _ in itertools.groupby(d.setting for d in self.decisions)]


def distance(setting, best):
    return abs(math.log2(setting["bucket_bytes"] / best))


def seconds_at(best, slope=0.1):
    """Return a function of the setting that is fastest with buckets of ``best``."""
    return lambda setting, _: 0.1 * (1 + slope * distance(setting, best))


@pytest.mark.parametrize("best", [256 << 10, 4 * MIB, 16 * MIB, 128 * MIB])
def test_finds_the_best_bucket_size(best):
    search = Search(SPACE, OptunaSampler(SPACE), LIMITS)
    found = Loop(seconds_at(best)).run(search)
    assert found == {"bucket_bytes": best}
    if best == 4 * MIB:
        assert search.gain == 0
    else:
        expected = 1 + 0.1 * distance(DEFAULT, best)
        assert 1 + search.gain == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_finds_a_good_setting_in_a_large_space_with_noise(seed):
    choices = {"bucket_bytes": SIZES, "way": ["a", "b", "c"], "limit": [1, 4, 16, 64]}
    space = Space(choices, {**DEFAULT, "way": "a", "limit": 64})
    noise = random.Random(seed)

    def seconds(setting, _):
        slow = 0.06 * distance(setting, 16 * MIB)
        slow += {"a": 0.1, "b": 0.0, "c": 0.15}[setting["way"]]
        slow += 0.03 * abs(math.log2(setting["limit"] / 4))
        return 0.1 * (1 + slow) * noise.uniform(0.9, 1.1)

    limits = Limits(trials=16, warmup_s=1.0, sample_s=4.0)
    found = Loop(seconds).run(Search(space, OptunaSampler(space), limits))
    noise = random.Random(0)
    calm = [seconds(found, 0) for _ in range(300)]
    # The default takes 0.128 on average, and the best setting 0.1.
    assert sum(calm) / len(calm) < 0.114


def test_the_sampler_proposes_each_setting_once_and_never_the_default():
    sampler = OptunaSampler(SPACE)
    proposed = []
    while (setting := sampler.propose()) is not None:
        proposed.append(setting["bucket_bytes"])
        sampler.learn(setting, 1.0)
    assert sorted([*proposed, 4 * MIB]) == SIZES


def test_measures_the_default_between_all_candidates():
    loop, sampler = Loop(seconds_at(16 * MIB)), InOrder(SPACE)
    loop.run(Search(SPACE, sampler, LIMITS))
    settings = loop.settings()
    assert all(setting == DEFAULT for setting in settings[::2])
    candidates = settings[1::2]
    assert DEFAULT not in candidates
    # The winner comes twice more at the end.
    assert candidates[-2:] == [{"bucket_bytes": 16 * MIB}] * 2
    assert len(candidates) == len(SIZES) - 1 + 2


def test_keeps_the_default_if_the_winner_was_lucky():
    loop = Loop(None)
    search = Search(SPACE, InOrder(SPACE), LIMITS)
    lucky = {"bucket_bytes": MIB}

    def seconds(setting, _):
        if setting != lucky:
            return 0.1 if setting == DEFAULT else 0.11
        return 0.05 if loop.settings().count(lucky) < 2 else 0.12

    loop.seconds_of = seconds
    assert loop.run(search) == DEFAULT
    assert max(search.trials, key=lambda trial: trial.speed).setting == lucky
    assert loop.settings().count(lucky) == 3
    assert search.gain == 0


def test_differences_that_are_noise_change_nothing():
    noise = random.Random(3)
    loop = Loop(lambda setting, now_s: 0.1 * noise.uniform(0.95, 1.05))
    assert loop.run(Search(SPACE, OptunaSampler(SPACE), LIMITS)) == DEFAULT


@pytest.mark.parametrize("drift", [0.5, 4.0])
def test_a_loop_that_becomes_slower_or_faster_favours_no_candidate(drift):
    """The speed changes by ``drift`` within the search, more than by any setting."""

    def seconds(setting, now_s):
        return seconds_at(16 * MIB, 0.03)(setting, 0) * drift ** (now_s / 120)

    search = Search(SPACE, InOrder(SPACE), LIMITS)
    assert Loop(seconds).run(search) == {"bucket_bytes": 16 * MIB}
    for trial in search.trials:
        expected = seconds_at(16 * MIB, 0.03)(DEFAULT, 0) / seconds_at(16 * MIB, 0.03)(
            trial.setting, 0
        )
        assert trial.speed == pytest.approx(expected, abs=0.03)


def test_drops_hopeless_candidates_after_their_warmup():
    def seconds(setting, _):
        return 0.1 if setting == DEFAULT else 1.0

    loop = Loop(seconds)
    search = Search(SPACE, InOrder(SPACE), LIMITS)
    assert loop.run(search) == DEFAULT
    rounds = [d.rounds for d in loop.decisions if d.setting != DEFAULT]
    assert rounds == [10] * (len(SIZES) - 1)
    assert all(trial.speed == pytest.approx(0.1) for trial in search.trials)


def test_evaluations_and_checkpoints_do_not_count():
    number = itertools.count()

    def seconds(setting, _):
        k = next(number)
        own = seconds_at(16 * MIB)(setting, 0)
        if k % 7 == 0:  # an evaluation, which a forward pass announces
            return RoundTime(own + 5.0, is_interrupted=True)
        return own + (5.0 if k % 31 == 0 else 0.0)  # a checkpoint

    search = Search(SPACE, InOrder(SPACE), LIMITS)
    assert Loop(seconds).run(search) == {"bucket_bytes": 16 * MIB}
    assert search.gain == pytest.approx(0.2)


def test_a_measurement_with_many_evaluations_is_prolonged():
    number = itertools.count()

    def seconds(setting, _):
        return RoundTime(0.1, is_interrupted=next(number) % 5 > 0)

    loop = Loop(seconds)
    loop.run(Search(SPACE, InOrder(SPACE), Limits(trials=1, warmup_s=1, sample_s=4)))
    # Each warm-up is followed by three intervals with 8 undisturbed rounds of 40 each.
    assert [d.rounds for d in loop.decisions[1:5]] == [10, 40, 40, 40]


def test_interruptions_in_each_round_belong_to_the_loop():
    def seconds(setting, _):
        return RoundTime(seconds_at(16 * MIB)(setting, 0), is_interrupted=True)

    search = Search(SPACE, InOrder(SPACE), LIMITS)
    assert Loop(seconds).run(search) == {"bucket_bytes": 16 * MIB}


def test_rounds_fit_the_time():
    limits = Limits(trials=1, warmup_s=2.0, sample_s=10.0)
    for seconds, expected in [(0.5, (4, 20)), (60.0, (2, 5)), (1e-5, (1000, 1000))]:
        loop = Loop(lambda setting, _, seconds=seconds: seconds)
        loop.run(Search(SPACE, InOrder(SPACE), limits))
        assert {d.rounds for d in loop.decisions[1:]} == set(expected)


def test_bucket_sizes():
    kib = 1 << 10
    assert bucket_sizes(300 * kib, 4 * MIB) == [128 * kib, 256 * kib, 4 * MIB]
    assert bucket_sizes(300 * kib, 5) == [5, 128 * kib, 256 * kib, 512 * kib]
    assert bucket_sizes(1, 5) == [5]
    assert [128 * kib << k for k in range(11)] == SIZES


def test_a_space_knows_its_settings():
    space = Space({"a": [1, 2], "b": ["x", "y", "z"]}, {"a": 1, "b": "x"})
    assert space.size == 6
    assert space.at(space.positions_of({"a": 2, "b": "z"})) == {"a": 2, "b": "z"}
    assert space.has({"b": "y", "a": 2})
    for other in [None, {}, {"a": 1}, {"a": 3, "b": "x"}, {"a": 1, "b": "x", "c": 1}]:
        assert not space.has(other)
    assert in_words({"a": 2, "b": "z"}) == "a=2, b=z"


def test_round_times():
    now = iter([0.0, 1.0, 3.0, 10.0, 10.5])
    times = RoundTimes(lambda: next(now))
    times.begin(2)
    assert not times.on_round()
    times.interrupt()
    assert times.on_round()
    assert times.seconds == [1.0, 2.0]
    assert times.interrupted == [False, True]
    times.begin(1)
    assert times.on_round()
    assert (times.seconds, times.interrupted) == ([0.5], [False])
