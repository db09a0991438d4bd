"""The programs of docs/training.md train in the trainers of others."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.launch import EXAMPLES, run_example
from tests.support.trainers import TRAINER_LIMIT_S

TEXT = (EXAMPLES.parent / "docs" / "training.md").read_text()
PROGRAMS = dict(
    re.findall(r"^\*\*(with_\w+\.py)\*\*:\n\n```python\n(.*?)```", TEXT, re.M | re.S)
)
# All in one job, since imports take most of the time of a short one.
RUN_ALL = """
import os, runpy, sys
import torch
import bluecomm as bf

os.chdir(os.path.dirname(__file__))
for name in {names}:
    print("program", name)
    runpy.run_path(name, run_name="__main__")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    bf.shutdown()
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState
        AcceleratorState._reset_state(True)
"""


def test_programs_in_trainers(tmp_path: Path) -> None:
    names = ["with_lightning.py", "with_accelerate.py", "with_transformers.py"]
    assert list(PROGRAMS) == names
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    script = tmp_path / "all.py"
    script.write_text(RUN_ALL.format(names=names))
    printed = run_example(script, np=2, limit_s=TRAINER_LIMIT_S)
    losses = re.findall(r"^\[\d\] loss ([\d.e-]+)$", printed, re.M)
    assert len(losses) == 2 * len(names), printed
    assert max(map(float, losses)) < 2.5  # of the last, log 20 at its start
    assert (tmp_path / "out" / "model.safetensors").exists()
