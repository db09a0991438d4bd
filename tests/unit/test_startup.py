"""What Python does at the start of each process of the tests."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.python_path import python_path

# In place of torch and its compiler: whether garbage is collected during the import.
FAKE = "import gc\nis_collecting = gc.isenabled()\n"
LOOK = """
import gc, json
{first}
before = gc.get_freeze_count()
import torch
frozen = gc.get_freeze_count()
print(json.dumps([torch.is_collecting, gc.isenabled(), frozen > before]))
import torch._dynamo
is_frozen = gc.get_freeze_count() > frozen
print(json.dumps([torch._dynamo.is_collecting, gc.isenabled(), is_frozen]))
"""


@pytest.mark.parametrize(
    ("first", "found"),
    [
        ("", [[False, True, True], [False, True, False]]),
        ("gc.disable()", [[False, False, False]] * 2),
    ],
    ids=["as usual", "without a collector"],
)
def test_nothing_is_collected_while_torch_is_imported(first, found, tmp_path):
    (tmp_path / "torch").mkdir()
    for name in ("__init__", "_dynamo"):
        (tmp_path / f"torch/{name}.py").write_text(FAKE)
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(first=first)],
        env={**os.environ, "PYTHONPATH": python_path(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == found


def test_the_processes_of_the_tests_have_it():
    assert python_path() in os.environ["PYTHONPATH"]
