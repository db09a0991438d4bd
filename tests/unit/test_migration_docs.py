"""The pages for users of BlueFog, Horovod and Bagua name only what exists."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bluecomm as bf
import bluecomm.compat.horovod as hvd
from tests.unit.bluecomm.test_public_names import BLUEFOG, HOROVOD

ROOT = Path(__file__).parents[2]
PAGES = ["from-bluefog.md", "from-horovod.md"]
DEFECTS = "notes/bluefog-defects.md"
DEFECTS_OF_BAGUA = "notes/bagua-defects.md"
# Arguments in the tables of names, and a function that has them.
ARGUMENTS = {
    "src_weights": bf.neighbor_allreduce,
    "dst_weights": bf.neighbor_allreduce,
    "num_steps_per_communication": bf.DistributedOptimizer,
}


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def rows_of(page: str) -> Iterator[tuple[str, str]]:
    """Return the first two cells of each row of the tables of names."""
    names = text_of(page).partition("\n## Errors")[0]
    for theirs, ours in re.findall(r"^\| ([^|]+) \| ([^|]+) \|.*\|$", names, re.M):
        if theirs not in ("BlueFog", "Horovod") and not theirs.startswith("---"):
            yield theirs, ours


def names_in(cell: str) -> list[str]:
    """Return the Python names of a cell, without options and variables."""
    return re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", cell)


def promised(page: str) -> list[tuple[str, bool]]:
    """Return the name that must exist, and whether optimizers must have it."""
    found = []
    for theirs, ours in rows_of(page):
        cell = theirs if ours == "same" else ours
        is_attribute = theirs.endswith("of an optimizer")
        found += [(name, is_attribute) for name in names_in(cell)]
    return found


@pytest.fixture(scope="module")
def optimizer() -> Iterator[Any]:
    bf.init()
    model = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), 0.1)
    yield bf.DistributedOptimizer(plain, model, algorithm="neighbor_allreduce")
    bf.shutdown()


@pytest.mark.parametrize("page", PAGES)
def test_names_of_the_tables_exist(page: str, optimizer: Any) -> None:
    assert len(promised(page)) > 40
    for name, is_attribute in promised(page):
        *modules, last = name.split(".")
        if is_attribute:
            assert hasattr(optimizer, name), name
        elif name in ARGUMENTS:
            assert name in inspect.signature(ARGUMENTS[name]).parameters
        elif modules[:1] == ["bfrun"]:
            assert hasattr(importlib.import_module(".".join(modules)), last), name
        elif modules:
            assert hasattr(importlib.import_module(f"bluecomm.{modules[0]}"), last)
        else:
            public = bf if page == PAGES[0] else hvd
            assert name in public.__all__, name


@pytest.mark.parametrize(
    ("page", "names"), [(PAGES[0], BLUEFOG), (PAGES[1], HOROVOD)], ids=PAGES
)
def test_no_public_name_is_forgotten(page: str, names: str) -> None:
    theirs = {name for cell, _ in rows_of(page) for name in names_in(cell)}
    for name in set(names.split()) - {"topology_util"}:
        stem = name.removesuffix("_").removesuffix("_nonblocking").removesuffix("_")
        assert {name, stem} & theirs, name


def test_each_public_name_for_horovod_has_a_row() -> None:
    listed = {name for cell, _ in rows_of(PAGES[1]) for name in names_in(cell)}
    assert set(hvd.__all__) <= listed


@pytest.mark.parametrize("page", [DEFECTS, DEFECTS_OF_BAGUA, "from-horovod.md"])
def test_tests_that_are_named_exist(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text_of(page))
    assert named
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), test


def test_cases_that_are_named_exist() -> None:
    text = text_of(DEFECTS)
    named = re.findall(r"`(tests/[\w/]+\.py)::\w+`, (?:case|model) `(\w+)`", text)
    assert len(named) == 3
    models = (ROOT / "tests" / "support" / "training.py").read_text()
    for path, case in named:
        own = (ROOT / path).read_text()
        assert f"def {case}(" in own or f'"{case}":' in models, case


@pytest.mark.parametrize(
    ("page", "script"),
    [
        (
            PAGES[0],
            "import bluefog.torch as bf\nfrom bluefog.common import topology_util\n"
            "assert topology_util.RingGraph is bf.RingGraph\n",
        ),
        (PAGES[1], "import horovod.torch as hvd\nassert hvd.allreduce_async_\n"),
    ],
    ids=PAGES,
)
def test_the_sed_command_changes_all_imports(
    page: str, script: str, tmp_path: Path
) -> None:
    command = re.search(r"`(sed -i [^`]*\*\.py)`", text_of(page))
    assert command
    (tmp_path / "train.py").write_text(script)
    subprocess.run(command[1], shell=True, cwd=tmp_path, check=True)
    exec((tmp_path / "train.py").read_text(), {})
