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


def run(program, folder):
    """Return the lines that a program prints, with modules from ``folder``."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": python_path(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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
    lines = run(LOOK.format(first=first), tmp_path)
    assert [json.loads(line) for line in lines] == found


# In place of torch, which keeps the versions of functions that are not compiled, and of
# its compiler, a package.
KEEPS = """
def call(fn):
    if not hasattr(fn, "__dynamo_disable"):
        import torch._dynamo
        fn.__dynamo_disable = torch._dynamo.disable(fn, True, wrapping=False)
    return fn.__dynamo_disable()
"""
COMPILER = """
import torch._dynamo.parts
print("imported")
def disable(fn, recursive=True, *, wrapping=True):
    return lambda: f"{fn()} {recursive} {wrapping}"
def graph_break():
    print("break")
"""
PARTS = """
import sys, types
print("part")
word = 1
class Fixed(types.ModuleType):
    def __setattr__(self, name, value):
        raise AttributeError(name)
sys.modules[__name__].__class__ = Fixed
"""
STEPS = """
import sys, torch
def step(): return "step"
print(torch.call(step))
torch._dynamo.graph_break()
print(hasattr(torch._dynamo, "__wrapped__"))
%s
print(torch.call(step))
torch._dynamo.graph_break()
import torch._dynamo.parts
parts = torch._dynamo.parts
print(parts is sys.modules[parts.__spec__.name], torch._dynamo.__spec__.loader)
"""


@pytest.mark.parametrize(
    "use",
    [
        "torch._dynamo.parts",
        "import torch._dynamo.parts as parts; parts.word",
        "from torch._dynamo.parts import word",
        "from torch._dynamo import *",
        "print(torch._dynamo.disable(step)())",
    ],
)
def test_the_compiler_is_imported_once_it_is_used(use, tmp_path):
    compiler = tmp_path / "torch/_dynamo"
    compiler.mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text(KEEPS)
    (compiler / "__init__.py").write_text(COMPILER)
    (compiler / "parts.py").write_text(PARTS)
    lines = run(STEPS % use, tmp_path)
    before, after = ["step", "False"], ["step True False", "break"]
    asked = ["step True True"] if "disable" in use else []
    assert lines[:-1] == [*before, "part", "imported", *asked, *after]
    assert lines[-1].startswith("True <_frozen_importlib_external.SourceFileLoader")


def test_the_processes_of_the_tests_have_it():
    assert python_path() in os.environ["PYTHONPATH"]
