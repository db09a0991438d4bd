"""Output files are checked before the measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from bluecomm.bench import arguments
from bluecomm.bench.arguments import why_not_written
from tests.support.stand_in import replace_in


def test_files_that_can_be_written(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.touch()
    assert why_not_written(None, None) == ""
    assert why_not_written(old, tmp_path / "new.PNG", None) == ""
    assert why_not_written(Path("new.json")) == ""
    assert list(tmp_path.iterdir()) == [old]


def test_files_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_not_written(tmp_path) == f"{tmp_path} is a folder, not a file"
    lost = tmp_path / "lost" / "x.svg"
    assert (
        why_not_written(None, lost)
        == f"{lost}: the folder {lost.parent} does not exist"
    )
    unnamed = tmp_path / "picture"
    assert why_not_written(None, None, unnamed) == (
        f"{unnamed} must end in one of .png, .svg, .pdf"
    )
    # root may write to any file.
    replace_in(monkeypatch, arguments, "os", access=lambda path, mode: False)
    found = why_not_written(tmp_path / "x.json")
    assert found == f"{tmp_path} cannot be written to"


def test_a_plot_needs_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    assert why_not_written(tmp_path / "x.json") == ""
    said = why_not_written(None, tmp_path / "x.png")
    assert "cannot be drawn without matplotlib: pip install matplotlib" in said
