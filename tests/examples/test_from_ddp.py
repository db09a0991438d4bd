"""The two programs of docs/from-ddp.md train alike."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.examples.launch import EXAMPLES, run_example
from tests.support.deadlines import JOB_S

TEXT = (EXAMPLES.parent / "docs" / "from-ddp.md").read_text()
PROGRAMS = dict(
    re.findall(r"^\*\*(\w+\.py)\*\*:\n\n```python\n(.*?)```", TEXT, re.M | re.S)
)


def run_under_torchrun(program: Path) -> str:
    """Return what a program of torch.distributed prints on two ranks.

    gloo sometimes aborts at its end on a busy machine ("terminate called without an
    active exception"), so the program may be started again.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", str(program)]
    for _ in range(3):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=JOB_S, check=False
        )
        if done.returncode == 0:
            return done.stdout
    pytest.fail(f"{' '.join(command)} ended with {done.returncode} three times")


def test_both_programs_print_the_same_and_save_the_same(tmp_path: Path) -> None:
    assert list(PROGRAMS) == ["ddp.py", "bf.py"]
    models = {}
    printed = {}
    for name, program in PROGRAMS.items():
        model = tmp_path / f"{name}.pt"
        (tmp_path / name).write_text(program.replace("model.pt", str(model)))
        if name == "ddp.py":
            text = run_under_torchrun(tmp_path / name)
        else:
            text = run_example(tmp_path / name, np=2)
        printed[name] = re.findall(r"epoch \d: [\d.]+", text)
        models[name] = torch.load(model)
    assert len(printed["bf.py"]) == 3
    assert printed["bf.py"] == printed["ddp.py"]
    torch.testing.assert_close(models["bf.py"], models["ddp.py"])
