"""Tests that planted symbolic links do not redirect bfrun's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bfrun import files
from bfrun.files import create_file, link_newest, make_run_folder
from tests.support.stand_in import replace_in


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path, folder = make_run_folder(str(tmp_path / "logs"))
    os.symlink(victim, f"{path}/rank0.stdout")
    with pytest.raises(FileExistsError):
        create_file("rank0.stdout", 0o600, folder)
    os.close(folder)
    assert victim.read_text() == "precious"


def test_a_planted_run_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_in(monkeypatch, files, "secrets", token_hex=lambda nbytes: "abc")
    replace_in(monkeypatch, files, "time", strftime=lambda how: "now")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "now-abc").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        make_run_folder(str(tmp_path))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("end", ["", "/"])
def test_a_parent_that_is_a_link_of_another_user_is_refused(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "logs"
    link.symlink_to(tmp_path / "elsewhere")
    path, folder = make_run_folder(f"{link}{end}")
    os.close(folder)
    assert os.listdir(tmp_path / "elsewhere") == [os.path.basename(path)]

    def of_somebody_else(path: str) -> os.stat_result:
        fields = list(os.lstat(path))
        fields[4] = 12345
        return os.stat_result(fields)

    replace_in(monkeypatch, files, "os", lstat=of_somebody_else)
    with pytest.raises(PermissionError, match="a symbolic link of user 12345"):
        make_run_folder(f"{link}{end}")


def test_the_link_to_the_newest_replaces_links_only(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "latest").symlink_to(victim)
    for name in ("run1", "run2"):
        (tmp_path / name).mkdir()
        link_newest(str(tmp_path / name), "latest")
        assert os.readlink(tmp_path / "latest") == name
    assert victim.read_text() == "precious"
    (tmp_path / "file").write_text("mine")
    link_newest(str(tmp_path / "run1"), "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "latest", "run1", "run2", "victim"]
