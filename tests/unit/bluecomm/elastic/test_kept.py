"""Committed states in files."""

import pytest
import torch

from bluecomm.elastic import kept as module
from bluecomm.elastic.kept import KeptStates
from tests.support.stand_in import replace_in


def test_the_newest_commit_of_any_rank(tmp_path):
    kept = KeptStates(tmp_path / "new" / "job")
    assert kept.newest() == 0
    kept.write(1, 0, {"x": torch.ones(2)})
    kept.write(2, 0, {"x": torch.zeros(2)})
    kept.write(1, 3, {"x": torch.ones(3)})
    assert kept.newest() == 2
    assert kept.read(2)["x"].tolist() == [0, 0]
    names = sorted(path.name for path in kept.folder.iterdir())
    assert names == ["commit-1-rank-3.pt", "commit-2-rank-0.pt"]
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    kept.remove()
    assert not kept.folder.exists()
    assert kept.newest() == 0
    with pytest.raises(FileNotFoundError, match="has no state of commit 2 any more"):
        kept.read(2)


def test_torn_and_foreign_files_are_not_read(tmp_path):
    kept = KeptStates(tmp_path)
    kept.write(3, 0, {"x": torch.ones(100)})
    whole = (tmp_path / "commit-3-rank-0.pt").read_bytes()
    (tmp_path / "commit-7-rank-1.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "commit-8-rank-1.99.new").write_bytes(whole)
    (tmp_path / "notes.txt").write_text("x")
    assert kept.newest() == 3


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="to which no other user may write"):
        KeptStates(tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(PermissionError, match="must be a folder"):
        KeptStates(tmp_path / "link")


def test_a_full_disk_leaves_the_last_state(tmp_path, monkeypatch):
    kept = KeptStates(tmp_path)
    kept.write(1, 0, {"x": 1})

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    replace_in(monkeypatch, module, "os", fsync=fail)
    with pytest.raises(OSError, match=r"rank 0 could not write commit 2 .*No space"):
        kept.write(2, 0, {"x": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["commit-1-rank-0.pt"]
