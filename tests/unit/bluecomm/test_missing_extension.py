"""The error for a copy of the sources that has not been compiled."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bluecomm
from tests.support.deadlines import DEADLINE_S

PACKAGE = Path(bluecomm.__file__).parent


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory):
    """A copy of the Python sources without the compiled modules."""
    folder = tmp_path_factory.mktemp("sources")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for package in (PACKAGE, PACKAGE.parent / "bfrun"):
        shutil.copytree(package, folder / package.name, ignore=ignored)
    shutil.copy(PACKAGE.parent / "bluecomm_autoload.py", folder)
    return folder


def import_error(code, folder, path):
    """Return the last line of the standard error of a program in a folder."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path}
    # Without site, because the environment of these tests has the compiled package.
    program = f"import sys; sys.path += {sys.path[1:]!r}; {code}"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ended.returncode == 1
    return ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", ["bluecomm._native", "bluecomm.bench._raw_memory"])
def test_a_source_tree_that_shadows_an_install_is_named(module, source_tree):
    text = import_error(f"import {module}", source_tree, str(PACKAGE.parent))
    assert text.startswith(
        f"ImportError: Python imported bluecomm from {source_tree}/bluecomm, where "
        f"{module} has not been compiled, instead of the installed copy in {PACKAGE}."
    )
    assert "Start it from another folder" in text


def test_a_source_tree_alone_asks_to_be_built(source_tree):
    code = f"sys.path = [e for e in sys.path if e != {str(PACKAGE.parent)!r}]; "
    text = import_error(f"{code}import bluecomm._native", source_tree, "")
    assert f"has not been compiled in {source_tree}/bluecomm. Run `make build`" in text
