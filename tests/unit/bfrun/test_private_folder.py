"""Tests the folders for sockets, also after their owner was killed."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bfrun import private_folder
from bfrun.private_folder import PrivateFolder, remove_abandoned
from tests.support.stand_in import replace_in

PREFIX = "bluecomm-"
# Its child holds the lock, too.
_OWNER = """
import os, socket, sys, tempfile
from bfrun.private_folder import PrivateFolder
tempfile.tempdir = sys.argv[1]
folder = PrivateFolder("bluecomm-")
socket.socket(socket.AF_UNIX).bind(folder.path + "/rank-0")
open(folder.path + "/secret", "w").close()
open(folder.path + "/trace-0-12", "w").close()
child = os.fork()
if child:
    print(folder.path, child, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_it_is_private_short_and_removed_with_its_contents(parent):
    folder = PrivateFolder(PREFIX)
    path = Path(folder.path)
    assert path.parent == parent
    assert path.stat().st_mode & 0o777 == 0o700
    (path / "socket").touch()
    folder.close()
    assert not path.exists()


def test_a_socket_in_it_has_a_path_that_is_short_enough(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 70)))
    folder = PrivateFolder(PREFIX)
    assert len(folder.path) < 80
    folder.close()


def test_the_next_start_removes_what_killed_processes_have_left(parent):
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        path, child = owner.stdout.readline().split()
        remove_abandoned(str(parent), PREFIX)
        owner.kill()
        remove_abandoned(str(parent), PREFIX)
        assert len(os.listdir(path)) == 3  # the child runs
        os.kill(int(child), signal.SIGKILL)
        owner.stdout.read()  # both have ended
    PrivateFolder(PREFIX).close()
    assert os.listdir(parent) == []


def test_what_others_have_made_is_not_removed(parent):
    names = ("training", "examples", "work", "link_of_u", "abcdefgh")
    training, examples, work, link, readable = (parent / (PREFIX + n) for n in names)
    for path in (training, examples, work, readable):
        path.mkdir(0o700)
    readable.chmod(0o750)
    (training / "secret").touch()
    (training / "weights.pt").touch()
    (examples / "secret").symlink_to(training)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(work / "s"))
    link.symlink_to(training)
    before = sorted(parent.rglob("*"))
    remove_abandoned(str(parent), PREFIX)
    assert sorted(parent.rglob("*")) == before


def test_a_folder_removed_before_its_lock_is_made_again(parent, monkeypatch):
    made = []

    def make_and_lose(**options):
        made.append(tempfile.mkdtemp(**options))
        if len(made) == 1:
            remove_abandoned(str(parent), PREFIX)
        return made[-1]

    replace_in(monkeypatch, private_folder, "tempfile", mkdtemp=make_and_lose)
    folder = PrivateFolder(PREFIX)
    assert made[1:] == [folder.path]
    assert Path(folder.path).exists()
    folder.close()
