"""The two programs of docs/from-ddp.md train alike."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

from tests.examples.launch import EXAMPLES, run_example

TEXT = (EXAMPLES.parent / "docs" / "from-ddp.md").read_text()
PROGRAMS = dict(
    re.findall(r"^\*\*(\w+\.py)\*\*:\n\n```python\n(.*?)```", TEXT, re.M | re.S)
)


def test_both_programs_print_the_same_and_save_the_same(tmp_path: Path) -> None:
    assert list(PROGRAMS) == ["ddp.py", "bf.py"]
    models = {}
    printed = {}
    for name, program in PROGRAMS.items():
        model = tmp_path / f"{name}.pt"
        (tmp_path / name).write_text(program.replace("model.pt", str(model)))
        if name == "ddp.py":
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            text = subprocess.run(
                [*torchrun, "--nproc-per-node", "2", str(tmp_path / name)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                timeout=300,
            ).stdout
        else:
            text = run_example(tmp_path / name, np=2)
        printed[name] = re.findall(r"epoch \d: [\d.]+", text)
        models[name] = torch.load(model)
    assert len(printed["bf.py"]) == 3
    assert printed["bf.py"] == printed["ddp.py"]
    torch.testing.assert_close(models["bf.py"], models["ddp.py"])
