"""The Slurm that the tests of this folder share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm import Slurm, make_slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Two nodes that claim to have eight cores each."""
    # munged refuses pytest's folder, whose parents belong to other groups.
    with (
        tempfile.TemporaryDirectory(prefix="bluecomm-slurm-") as folder,
        make_slurm(Path(folder)) as made,
    ):
        yield made
