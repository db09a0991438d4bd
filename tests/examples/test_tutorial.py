"""The programs of docs/tutorial.md run, and print the shown output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.launch import EXAMPLES, run_example

TEXT = (EXAMPLES.parent / "docs" / "tutorial.md").read_text()
PROGRAMS = dict(
    re.findall(r"^\*\*(\w+\.py)\*\*:\n\n```python\n(.*?)```", TEXT, re.M | re.S)
)
# All programs run in one job, since imports take most of the time of a short job.
RUN_ALL = """
import runpy, sys
import bluecomm as bf

for name in {names}:
    runpy.run_path(name, run_name="__main__")
    bf.barrier()
    bf.shutdown()
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tutorial")
    for name, program in PROGRAMS.items():
        (folder / name).write_text(program)
    script = folder / "all.py"
    script.write_text(RUN_ALL.format(names=[str(folder / name) for name in PROGRAMS]))
    return run_example(script, np=4).splitlines()


def test_all_programs_are_found() -> None:
    assert list(PROGRAMS) == ["hello.py", "consensus.py", "by_hand.py", "train.py"]
    for name in PROGRAMS:
        assert f"    bfrun -np 4 python {name}\n" in TEXT


def test_prints_what_the_page_shows(printed: list[str]) -> None:
    shown = re.findall(r"^    (\[\d\] .*)$", TEXT, re.M)
    assert len(shown) == 9
    assert set(shown) <= set(printed)


def test_neighbors_help(printed: list[str]) -> None:
    pattern = r"error with the neighbors ([\d.]+), of its own data alone ([\d.]+)"
    found = re.findall(pattern, "\n".join(printed))
    assert len(found) == 4
    assert all(float(together) < float(alone) for together, alone in found)


def test_the_model_is_trained(printed: list[str]) -> None:
    pattern = r"error of the averaged model ([\d.]+), models are ([\d.]+) apart"
    found = re.findall(pattern, "\n".join(printed))
    assert len(found) == 4
    assert len(set(found)) == 1
    assert max(map(float, found[0])) < 0.1


def test_the_scripts_and_pictures_of_the_page_exist() -> None:
    root = Path(EXAMPLES.parent)
    for name in re.findall(r"python (examples/\w+\.py)", TEXT):
        assert (root / name).is_file()
    for name in re.findall(r"\]\((images/\w+\.png)\)", TEXT):
        assert (root / "docs" / name).is_file()
