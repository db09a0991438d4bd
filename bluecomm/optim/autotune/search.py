"""Decides, on one rank, which setting is measured next, and which one is kept.

docs/autotune.md describes the timeline.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Generator, Sequence
from typing import Protocol

from bluecomm.optim.autotune.space import Setting, Space

# A candidate is dropped after its warm-up if it is this many times as slow as the
# default.
_HOPELESS = 2.0
# The fewest rounds of a warm-up and of a measurement, and the most of an interval.
_LEAST_WARMUP, _LEAST_MEASURED, _MOST = 2, 5, 1000
# Rounds with the default before the first decision.
FIRST_ROUNDS = 2
# A measurement is prolonged at most this often.
_PROLONGED = 3
# How often the winner is compared with the default again before it is kept.
_COMPARED_AGAIN = 2
# The winner must be this much faster than the default, each time that they are compared
# again. Differences below it are noise, and other buckets may change the last bits.
LEAST_GAIN = 0.02


@dataclasses.dataclass(frozen=True)
class Interval:
    """The rounds until the next decision, which all ranks train with one setting.

    Attributes:
        setting: The setting.
        rounds: Number of rounds; 0 if the search has ended and the setting is kept.
    """

    setting: Setting
    rounds: int


@dataclasses.dataclass(frozen=True)
class RoundTime:
    """One round of all ranks.

    Attributes:
        seconds: Its duration on the slowest rank.
        is_interrupted: Whether a rank did something else, such as an evaluation.
    """

    seconds: float
    is_interrupted: bool = False


@dataclasses.dataclass(frozen=True)
class Trial:
    """A setting that has been measured.

    Attributes:
        setting: The setting.
        speed: Its rounds per second, divided by those of the default at that time.
    """

    setting: Setting
    speed: float


class Sampler(Protocol):
    """Proposes settings, and learns from their speeds."""

    def propose(self) -> Setting | None:
        """Return a setting that has not been measured, or None if there is none."""

    def learn(self, setting: Setting, speed: float) -> None:
        """Take the speed of a setting, relative to the default."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a search takes.

    Attributes:
        trials: Number of candidates besides the default.
        warmup_s: Seconds of training before each measurement.
        sample_s: Seconds of each measurement.
    """

    trials: int
    warmup_s: float
    sample_s: float


# Yields decisions, takes the rounds that followed each, and returns a speed.
Measurement = Generator[Interval, Sequence[RoundTime], float]


class Search:
    """The search of one optimizer, which one rank runs for all.

    The default is measured before and after each candidate, and only the ratio counts.
    So a training that becomes faster or slower favours no candidate.

    Args:
        space: The settings.
        sampler: Chooses among them.
        limits: How long it takes.

    Attributes:
        decision: The interval under way.
        trials: The measured candidates, in this order.
        gain: How much faster the kept setting is than the default, as a fraction, when
            the two were compared again; 0 if the default is kept.
    """

    def __init__(self, space: Space, sampler: Sampler, limits: Limits) -> None:
        self._space = space
        self._sampler = sampler
        self._limits = limits
        self._round_s = 0.0
        self._default_speed = 0.0
        self.trials: list[Trial] = []
        self.gain = 0.0
        self._run = self._search()
        self.decision = next(self._run)

    def report(self, rounds: Sequence[RoundTime]) -> Interval:
        """Take the rounds of the last decision; return the next one."""
        self.decision = self._run.send(rounds)
        return self.decision

    def _search(self) -> Generator[Interval, Sequence[RoundTime], None]:
        default = self._space.default
        first = yield Interval(default, FIRST_ROUNDS)
        self._round_s = _typical(first)
        self._default_speed = yield from self._measure(default)
        for _ in range(self._limits.trials):
            setting = self._sampler.propose()
            if setting is None:
                break
            speed = yield from self._compare(setting)
            self._sampler.learn(setting, speed)
            self.trials.append(Trial(setting, speed))
        kept = yield from self._confirm()
        yield Interval(kept, 0)

    def _confirm(self) -> Generator[Interval, Sequence[RoundTime], Setting]:
        """Compare the winner with the default again; return what is kept."""
        best = max(self.trials, key=lambda trial: trial.speed, default=None)
        if best is None or best.speed < 1 + LEAST_GAIN:
            return self._space.default
        again = []
        for _ in range(_COMPARED_AGAIN):
            again.append((yield from self._compare(best.setting)))
        if min(again) < 1 + LEAST_GAIN:
            return self._space.default
        self.gain = statistics.fmean(again) - 1
        return best.setting

    def _compare(self, setting: Setting) -> Measurement:
        """Return how fast a setting is beside the default before and after it."""
        before = self._default_speed
        speed = yield from self._measure(setting)
        self._default_speed = yield from self._measure(self._space.default)
        return speed / statistics.fmean([before, self._default_speed])

    def _measure(self, setting: Setting) -> Measurement:
        """Return the rounds per second of a setting."""
        limits = self._limits
        rounds = self._rounds_in(limits.warmup_s, _LEAST_WARMUP)
        warmup = yield Interval(setting, rounds)
        # Right after a change, new memory is touched for the first time.
        settled = _typical(warmup[len(warmup) // 2 :])
        if setting == self._space.default:
            self._round_s = settled
        elif settled > _HOPELESS * self._round_s:
            return 1 / settled
        seconds: list[float] = []
        rounds = self._rounds_in(limits.sample_s, _LEAST_MEASURED)
        for _ in range(1 + _PROLONGED):
            seconds += _undisturbed((yield Interval(setting, rounds)))
            if 2 * len(seconds) > rounds:
                break
        return 1 / _trimmed_mean(seconds)

    def _rounds_in(self, seconds: float, least: int) -> int:
        """Return how many rounds of the default take ``seconds``."""
        return max(least, min(_MOST, round(seconds / self._round_s)))


def _typical(rounds: Sequence[RoundTime]) -> float:
    """Return the median duration, in seconds; also if all rounds were interrupted."""
    return statistics.median(_undisturbed(rounds) or [one.seconds for one in rounds])


def _undisturbed(rounds: Sequence[RoundTime]) -> list[float]:
    """Return the durations of the rounds without an interruption.

    If all are interrupted, this belongs to the loop, and all durations count.
    """
    seconds = [one.seconds for one in rounds if not one.is_interrupted]
    return seconds or [one.seconds for one in rounds]


def _trimmed_mean(seconds: Sequence[float]) -> float:
    """Return the mean without the shortest and the longest tenth.

    A round during which a checkpoint was written does not count; rounds of different
    lengths, as with batches of unequal size, do.
    """
    cut = -(-len(seconds) // 10)
    ordered = sorted(seconds)
    return statistics.fmean(ordered[cut:-cut] or ordered)
