"""Runs each test that takes ``seed`` with several; ``make fakegpu`` takes many more.

A test that takes ``rare_seed`` runs with a third of them.
"""

import os

from tests.support.one_thread import one_thread

__all__ = ["one_thread"]  # a fixture of all tests here

SEEDS = int(os.environ.get("FAKEGPU_SEEDS", "3"))
# Whether to run what is too expensive for ``make test``.
IS_THOROUGH = SEEDS > 3


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(SEEDS))
    if "rare_seed" in metafunc.fixturenames:
        metafunc.parametrize("rare_seed", range(max(1, SEEDS // 3)))
