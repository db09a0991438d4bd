"""No test replaces an attribute of the standard library for the whole process.

Threads that another test has left would get the replacement, too. ``replace_in`` of
``tests/support/stand_in.py`` replaces it for the module under test only.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Settings of the process rather than functions.
ALLOWED = re.compile(r"sys\.|tempfile\.tempdir$")
REPLACING = re.compile(r"\b(setattr|delattr|patch|object)\(")


def imports_of(tree):
    """Return the full name of each name that a file imports."""
    found = {}
    for one in ast.walk(tree):
        for alias in getattr(one, "names", []):
            if isinstance(one, ast.Import):
                name = alias.name if alias.asname else alias.name.split(".")[0]
                found[alias.asname or name] = name
            elif isinstance(one, ast.ImportFrom):
                found[alias.asname or alias.name] = f"{one.module}.{alias.name}"
    return found


def target_of(call, imports):
    """Return the full name of what a call replaces; empty if it is not imported."""
    owner, *rest = call.args
    if isinstance(owner, ast.Constant):
        return str(owner.value)
    first, *parts = path = ast.unparse(owner).split(".")
    is_path = all(map(str.isidentifier, path)) and first in imports
    if not is_path or not rest or not isinstance(rest[0], ast.Constant):
        return ""
    return ".".join([imports[first], *parts, str(rest[0].value)])


def without_module(name):
    """Return a full name without the module of the project that it begins with."""
    parts, path = name.split("."), ROOT
    while parts and ((path / parts[0]).is_dir() or (path / f"{parts[0]}.py").is_file()):
        path /= parts.pop(0)
    return ".".join(parts)


def replaced_in(text):
    """Return the attributes of the standard library that a test's text replaces."""
    if not REPLACING.search(text):
        return []
    tree = ast.parse(text)
    imports = imports_of(tree)
    calls = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.Call)
        and one.args
        and REPLACING.search(f"{ast.unparse(one.func)}(")
    ]
    names = [without_module(target_of(call, imports)) for call in calls]
    modules = {name for name in sys.stdlib_module_names if not name.startswith("_")}
    return [
        name
        for name in names
        if name.partition(".")[0] in modules and "." in name and not ALLOWED.match(name)
    ]


def test_the_standard_library_stays_as_it_is():
    found = {
        str(file.relative_to(ROOT)): replaced
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if (replaced := replaced_in(file.read_text()))
    }
    assert not found, "use replace_in of tests/support/stand_in.py instead"


@pytest.mark.parametrize(
    ("line", "replaced"),
    [
        ('monkeypatch.setattr(time, "sleep", x)', ["time.sleep"]),
        ('monkeypatch.setattr("time.sleep", x)', ["time.sleep"]),
        ('patch.delattr(os.path, "exists")', ["os.path.exists"]),
        ('patch.setattr(threading.Thread, "start", x)', ["threading.Thread.start"]),
        ('patch.setattr(Thread, "start", x)', ["threading.Thread.start"]),
        ('patch.setattr(module.time, "sleep", x)', ["time.sleep"]),
        ('patch.setattr("bfrun.silence.time.sleep", x)', ["time.sleep"]),
        ('mock.patch("time.sleep")', ["time.sleep"]),
        ('mock.patch.object(time, "sleep")', ["time.sleep"]),
        ('patch.setattr(module, "time", x)', []),
        ('patch.setattr("bluecomm.data.recordio.chunk.MOST_NBYTES", 1)', []),
        ('patch.setattr(made.queue, "put", x)', []),
        ('patch.setattr(threading.current_thread(), "name", x)', []),
        ('patch.setattr(tempfile, "tempdir", x)', []),
        ('patch.setattr(sys, "argv", x)', []),
    ],
)
def test_replacements_are_found(line, replaced):
    imports = (
        "import os, sys, tempfile, threading, time\n"
        "from threading import Thread\nfrom bfrun import silence as module\n"
    )
    assert replaced_in(imports + line) == replaced
