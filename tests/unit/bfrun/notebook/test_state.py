"""Tests the file that tells who runs the job of a profile."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

import pytest

from bfrun.errors import LaunchError
from bfrun.notebook import background
from bfrun.notebook.background import stop_background
from bfrun.notebook.profile import Profile
from bfrun.notebook.state import clear_state, hold_state, read_state
from tests.support.stand_in import replace_in


def test_a_held_state_is_seen_and_then_gone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert read_state(path) == (None, False)
    with hold_state(path, "p") as held:
        assert held.stale is None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        held.write(4, serving=True)
        job, running = read_state(path)
        assert running
        assert job is not None
        assert (job.pid, job.ranks, job.serving) == (os.getpid(), 4, True)
    assert read_state(path) == (None, False)


def test_a_state_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bfrun.notebook.state.write_all", fail)
    told = r"/state', in which .* cannot be written: No space left on device; free"
    with (
        pytest.raises(LaunchError, match=told),
        hold_state(tmp_path / "state", "p"),
    ):
        pass


def test_folders_that_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profile_p").touch()
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with pytest.raises(LaunchError, match=r"cannot be created: .* set IPYTHONDIR"):
        Profile("p").make()


def test_only_one_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "state"
    refused = f"profile 'p' already has a running job (driver: pid {os.getpid()} on"
    with (
        hold_state(path, "p"),
        pytest.raises(LaunchError, match=re.escape(refused)),
        hold_state(path, "p"),
    ):
        pass


@pytest.mark.parametrize("text", ['{"pid": 1, "host": "h"}', '{"pid": 1', "[]"])
def test_a_stale_state_stops_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state"
    path.write_text(text)
    assert not read_state(path)[1]
    with hold_state(path, "p") as held:
        assert (held.stale is not None) == text.endswith('"h"}')


def test_a_live_state_is_not_cleared(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with hold_state(path, "p"):
        clear_state(path)
        assert read_state(path)[0] is not None


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    profile = Profile("mine")
    profile.make()
    return profile


def test_stop_on_another_host(profile: Profile, monkeypatch) -> None:
    with hold_state(profile.state, "mine"):
        replace_in(monkeypatch, background, "socket", gethostname=lambda: "elsewhere")
        with pytest.raises(
            LaunchError, match=r"was started on .*; run ibfrun stop ther"
        ):
            stop_background(profile)


def test_stop_while_a_driver_begins(profile: Profile) -> None:
    with hold_state(profile.state, "mine"):
        os.truncate(profile.state, 0)
        with pytest.raises(
            LaunchError, match="'mine' is starting or ending; try again"
        ):
            stop_background(profile)


def test_folders_are_private(profile: Profile) -> None:
    for path in (profile.state, profile.log, profile.client_file):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x"])
def test_a_profile_is_a_plain_name(name: str) -> None:
    with pytest.raises(LaunchError, match=f"--ipython-profile '{name}': expected"):
        Profile(name)
