"""Tests of the machine code that Numba keeps on disk."""

from __future__ import annotations

import numba
import pytest

from bluecomm.compression.kernels import jit
from bluecomm.compression.kernels.disk_cache import cache_folder, source_hash


def add(one, other):
    return one + other


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for the machine code of the functions of a test."""
    monkeypatch.setattr(jit, "_folder", lambda: tmp_path)
    return tmp_path


def compile_add():
    return jit.compiled("int64(int64, int64)")(add)


def test_machine_code_is_used_again(folder):
    assert sum(compile_add().stats.cache_hits.values()) == 0
    again = compile_add()
    assert again(2, 3) == 5
    assert sum(again.stats.cache_hits.values()) == 1


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_is_not_used(folder, suffix):
    compile_add()
    files = list(folder.rglob(f"*.{suffix}"))
    for path in files:
        path.write_bytes(path.read_bytes()[:20])
    again = compile_add()
    assert files
    assert again(2, 3) == 5
    assert sum(again.stats.cache_hits.values()) == 0


def test_without_a_folder_each_process_compiles(monkeypatch):
    monkeypatch.setattr(jit, "_folder", lambda: None)
    assert compile_add()(2, 3) == 5


def test_other_sources_have_another_folder(tmp_path):
    (tmp_path / "one.py").write_text("a = 1")
    first = source_hash(tmp_path)
    assert source_hash(tmp_path) == first
    (tmp_path / "one.py").write_text("a = 2")
    second = source_hash(tmp_path)
    (tmp_path / "one.py").rename(tmp_path / "two.py")
    assert len({first, second, source_hash(tmp_path)}) == 3


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
def test_the_folder_follows_the_environment(tmp_path, monkeypatch, variable):
    at_home = variable == "HOME"
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if variable == "NUMBA_CACHE_DIR":  # Numba reads it when it is imported
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    else:
        monkeypatch.setenv(variable, str(tmp_path))
    found = cache_folder()
    above = tmp_path / ".cache" if at_home else tmp_path
    assert found is not None
    assert found.parent == above / "bluecomm"


def test_a_folder_that_others_can_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    found = cache_folder()
    assert found is not None
    found.chmod(0o777)
    assert cache_folder() is None


def test_without_a_folder_to_write_there_is_none(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file" / "below"))
    assert cache_folder() is None
