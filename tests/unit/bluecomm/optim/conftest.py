"""A world of one for the tests of optimizers."""

import pytest

import bluecomm as bf
from bluecomm.runtime import current_process


@pytest.fixture
def world():
    """Start a world of one, and leave it after the test."""
    bf.init()
    yield
    current_process().leave()
