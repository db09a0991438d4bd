"""Chooses settings with Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from bluecomm.optim.autotune.space import Setting, Space

# How often the estimator may propose settings that have been measured, in a row.
_ASKED = 10
_SEED = 0
# Settings that are drawn at random before the estimator has enough to go on.
_AT_RANDOM = 5


class OptunaSampler:
    """Proposes each setting once.

    Optuna must be installed.

    Args:
        space: The settings; its default counts as measured, with speed 1.

    Source:
        Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011.
        Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework",
        KDD 2019, arXiv:1907.10902.
    """

    def __init__(self, space: Space) -> None:
        import optuna

        self._space = space
        self._measured: dict[tuple[int, ...], float] = {}
        # Proposals whose speed is not known yet.
        self._asked: dict[tuple[int, ...], optuna.Trial] = {}
        self._random = random.Random(_SEED)
        # Numbers have an order, of which the estimator makes use, and words do not.
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            option: (
                optuna.distributions.IntDistribution(0, len(values) - 1)
                if all(isinstance(value, int) for value in values)
                else optuna.distributions.CategoricalDistribution(range(len(values)))
            )
            for option, values in space.choices.items()
        }
        with _quiet():
            self._study = optuna.create_study(
                direction="maximize",
                sampler=optuna.samplers.TPESampler(
                    seed=_SEED, n_startup_trials=_AT_RANDOM
                ),
            )
        self.learn(space.default, 1.0)

    def propose(self) -> Setting | None:
        """Return a setting that has not been measured, or None if there is none."""
        if len(self._measured) >= self._space.size:
            return None
        for _ in range(_ASKED):
            trial = self._study.ask(self._distributions)
            positions = [trial.params[option] for option in self._distributions]
            known = self._measured.get(tuple(positions))
            if known is None:
                self._asked[tuple(positions)] = trial
                return self._space.at(positions)
            self._study.tell(trial, known)
        return self._unmeasured()

    def learn(self, setting: Setting, speed: float) -> None:
        """Take the speed of a setting, relative to the default."""
        import optuna

        positions = self._space.positions_of(setting)
        self._measured[tuple(positions)] = speed
        trial = self._asked.pop(tuple(positions), None)
        if trial is not None:
            self._study.tell(trial, speed)
            return
        self._study.add_trial(
            optuna.trial.create_trial(
                params=dict(zip(self._distributions, positions, strict=True)),
                distributions=self._distributions,
                value=speed,
            )
        )

    def _unmeasured(self) -> Setting:
        """Return a random setting that has not been measured."""
        while True:
            positions = [
                self._random.randrange(len(values))
                for values in self._space.choices.values()
            ]
            if tuple(positions) not in self._measured:
                return self._space.at(positions)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from logging that a study was made; the user may log theirs."""
    import optuna

    was = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(was)
