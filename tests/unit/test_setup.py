"""How setup.py compiles the native libraries."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def setup(monkeypatch):
    """Return what setup.py defines, without a call of ``setup``."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    monkeypatch.setattr("pybind11.setup_helpers.ParallelCompile.install", vars)
    return runpy.run_path("setup.py")


def test_the_files_of_a_folder_are_compiled_together(setup, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = ("a/x", "a/y", "a/b/z", "kernels/k")
    sources = [f"native/{name}.cpp" for name in names]
    batches = setup["batches_of"](sources)
    a, b, alone = map(Path, batches)
    assert a.read_text() == '#include "a/x.cpp"\n#include "a/y.cpp"\n'
    assert b.read_text() == '#include "a/b/z.cpp"\n'
    assert str(alone) == "native/kernels/k.cpp"
    # An equal file keeps its time, so that it is not compiled again.
    before = a.stat().st_mtime_ns
    assert setup["batches_of"](sources) == batches
    assert a.stat().st_mtime_ns == before
    setup["batches_of"](sources[1:])
    assert a.read_text() == '#include "a/y.cpp"\n'


@pytest.mark.parametrize("name", ["extension", "bench", "plugin"])
def test_a_library_is_built_again_after_a_change_of_any_source(setup, name):
    library = setup[name]
    assert library.sources
    assert {*library.sources} < {*library.depends}
    assert all(source.startswith("native/") for source in library.sources)
