"""Runs each test that takes ``seed`` with several; ``make fakegpu`` takes many more."""

import os

SEEDS = int(os.environ.get("FAKEGPU_SEEDS", "3"))


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(SEEDS))
