"""Folders of ranks that no agent started."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bluecomm.runtime.rendezvous import private_folder
from bluecomm.runtime.rendezvous.private_folder import PrivateFolder, remove_abandoned

# By its path: the package imports torch.
_RANK = """
import runpy, sys, tempfile
module, tempfile.tempdir = sys.argv[1:]
folder = runpy.run_path(module)["PrivateFolder"]()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_it_is_private_short_and_removed_with_its_contents(parent):
    folder = PrivateFolder()
    path = Path(folder.path)
    assert path.parent == parent
    assert path.stat().st_mode & 0o777 == 0o700
    (path / "socket").touch()
    folder.close()
    assert not path.exists()


def test_a_socket_in_it_has_a_path_that_is_short_enough(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 70)))
    folder = PrivateFolder()
    assert len(folder.path) < 80
    folder.close()


def test_the_next_start_removes_what_a_killed_rank_has_left(parent):
    with subprocess.Popen(
        [sys.executable, "-c", _RANK, private_folder.__file__, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as rank:
        left = Path(rank.stdout.readline().strip())
        remove_abandoned(str(parent))
        assert left.exists()  # it runs
        rank.kill()
    PrivateFolder().close()
    assert not left.exists()


def test_only_empty_folders_of_ranks_are_removed(parent):
    full = parent / "bluecomm-01234567"
    others = [parent / "bluecomm-work", parent / "bluecomm-abcdefgh", full]
    for path in others:
        path.mkdir(0o700)
    others[1].chmod(0o750)
    (full / "trace").touch()
    remove_abandoned(str(parent))
    assert sorted(parent.iterdir()) == sorted(others)


def test_a_folder_removed_before_its_lock_is_made_again(parent, monkeypatch):
    make = tempfile.mkdtemp
    made = []

    def make_and_lose(**options):
        made.append(make(**options))
        if len(made) == 1:
            remove_abandoned(str(parent))
        return made[-1]

    monkeypatch.setattr(private_folder.tempfile, "mkdtemp", make_and_lose)
    folder = PrivateFolder()
    assert made[1:] == [folder.path]
    assert Path(folder.path).exists()
    folder.close()
