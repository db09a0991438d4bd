"""The programs of docs/algorithms.md run, and follow the formula step by step."""

from __future__ import annotations

import re

import pytest

from tests.examples.launch import EXAMPLES, run_example

TEXT = (EXAMPLES.parent / "docs" / "algorithms.md").read_text()
PROGRAMS = dict(
    re.findall(r"^\*\*(\w+\.py)\*\*.*?\n\n```python\n(.*?)```", TEXT, re.M | re.S)
)
REFERENCE = re.findall(r"```python\n(def majority_vote_reference.*?)```", TEXT, re.S)[0]
FOLLOW_THE_FORMULA = """
import runpy
import torch
import bluecomm as bf
import majority_vote
{reference}
runpy.run_path("vote.py", run_name="__main__")

for dtype in (torch.float32, torch.float64):
    model = torch.nn.Linear(7, 1, bias=False).to(dtype)
    bf.broadcast_parameters(model)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model, algorithm="majority_vote"
    )
    expected = model.weight.detach().clone()
    for step in range(4):
        gradients = torch.randn(
            3, 7, dtype=dtype, generator=torch.Generator().manual_seed(step)
        )
        gradients[0, :4] = torch.tensor([0.0, float("nan"), float("inf"), -0.0])
        if step == 3:
            gradients[:, 5] = 0.0
        optimizer.zero_grad()
        (model.weight * gradients[bf.rank()]).sum().backward()
        optimizer.step()
        expected = majority_vote_reference(expected, gradients.nan_to_num(nan=0), 0.5)
        assert torch.equal(model.weight, expected), (step, model.weight, expected)
print("as the formula")
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what the programs print, in one job."""
    folder = tmp_path_factory.mktemp("own")
    for name, program in PROGRAMS.items():
        (folder / name).write_text(program)
    script = folder / "all.py"
    program = FOLLOW_THE_FORMULA.format(reference=REFERENCE)
    script.write_text(program.replace('"vote.py"', repr(str(folder / "vote.py"))))
    return run_example(script, np=3).splitlines()


def test_the_example_is_short() -> None:
    assert list(PROGRAMS) == ["majority_vote.py", "vote.py"]
    algorithm = PROGRAMS["majority_vote.py"].splitlines()
    assert sum(bool(line.strip()) for line in algorithm) <= 40


def test_trains(printed: list[str]) -> None:
    found = re.findall(r"loss ([\d.]+), models are ([\d.]+) apart", "\n".join(printed))
    assert len(found) == 3
    assert all(float(loss) < 0.1 and float(apart) == 0 for loss, apart in found)


def test_follows_the_formula(printed: list[str]) -> None:
    assert sum("as the formula" in line for line in printed) == 3
