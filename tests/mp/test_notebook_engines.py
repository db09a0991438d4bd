"""``ibfrun`` on this machine: engines for a notebook, and how they end."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import ipyparallel
import pytest

from bfrun.notebook import interrupt_hanged_processes
from bfrun.notebook.state import read_state
from tests.support.deadlines import DEADLINE_S, hear, wait_until
from tests.support.notebook import Notebook, connected, notebook_in

pytestmark = pytest.mark.mp

SECRET = "a-value-of-this-test"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """Start two engines, which the last test of this file stops."""
    with notebook_in(tmp_path_factory.mktemp("notebook")) as book:
        book.start("-np", "2", "-x", f"TOKEN={SECRET}")
        yield book


def meet() -> tuple[int, int, float]:
    import torch

    import bluecomm as bf

    bf.init()
    mean = bf.allreduce(torch.tensor(float(bf.rank())))
    return bf.rank(), bf.size(), float(mean)


def wait_for_rank_1(folder: str) -> None:
    from pathlib import Path

    import torch

    import bluecomm as bf

    handle = bf.allreduce_nonblocking(torch.ones(3), name="rank 1 never comes")
    Path(folder, "waiting").touch()
    bf.wait(handle)


def test_engines_are_ranks(book: Notebook) -> None:
    with connected() as client:
        assert client[:].apply_sync(meet) == [(0, 2, 0.5), (1, 2, 0.5)]


def test_variables_reach_engines_but_no_command_line(book: Notebook) -> None:
    with connected() as client:
        assert client[:].apply_sync(os.getenv, "TOKEN") == [SECRET] * 2
    for pid in book.left():
        assert SECRET not in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_hung_engine_is_interrupted(book: Notebook, tmp_path: Path) -> None:
    with connected() as client:
        client[:].apply_sync(meet)
        hung = client[0].apply_async(wait_for_rank_1, str(tmp_path))
        hear(tmp_path, "waiting")
        while not hung.ready():
            assert set(interrupt_hanged_processes()) <= {0}
        with pytest.raises(ipyparallel.error.RemoteError, match="KeyboardInterrupt"):
            hung.get()
        assert client[:].apply(meet).get(DEADLINE_S) == [(0, 2, 0.5), (1, 2, 0.5)]


def test_no_engine_is_interrupted_unless_one_hangs(book: Notebook) -> None:
    done = book.ibfrun("interrupt")
    assert (done.returncode, done.stdout) == (0, "ibfrun: no engine is busy\n")


def test_a_second_start_names_the_first(book: Notebook) -> None:
    done = book.ibfrun("start", "-np", "2")
    assert done.returncode == 1
    assert "profile 'bluefog' already has a running job (driver: pid" in done.stderr


def test_only_the_owner_can_connect(book: Notebook) -> None:
    files = [
        *(book.profile.client_file, book.profile.engine_file),
        *(book.profile.state, book.profile.log),
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    secret = book.profile.client_file.read_text().split('"curve_serverkey": "')[1]
    for command in book.left().values():
        assert secret[:10] not in command


def test_stop_leaves_nothing(book: Notebook) -> None:
    done = book.ibfrun("stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 engines of profile 'bluefog' ended" in done.stdout
    assert book.left() == {}
    assert "0 processes left on 1 host" in book.log
    assert not book.profile.client_file.exists()
    assert book.profile.state.read_text() == ""


def test_a_killed_driver_leaves_nothing(tmp_path: Path) -> None:
    with notebook_in(tmp_path) as book:
        book.start("-np", "1")
        os.kill(book.pid("--foreground"), signal.SIGKILL)
        book.wait_until_empty()
        done = book.ibfrun("stop")
        assert done.returncode == 1
        assert "did not shut down cleanly, so its state was removed" in done.stderr
        done = book.ibfrun("stop")
        assert done.stderr == (
            "ibfrun: error: no job of profile 'bluefog' is running; the log of the "
            f"last one is {book.profile.log}\n"
        )


def test_ctrl_c_while_engines_start_leaves_nothing(tmp_path: Path) -> None:
    with notebook_in(tmp_path) as book:
        process = book.begin("start", "-np", "1")
        wait_until(lambda: read_state(book.profile.state)[1], "no driver")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert said == "ibfrun: interrupted; nothing was left running\n"
        book.wait_until_empty()
        assert read_state(book.profile.state) == (None, False)


def test_failed_starts_say_why(tmp_path: Path) -> None:
    with notebook_in(tmp_path) as book:
        done = book.ibfrun("start", "-np", "3", "-H", "localhost:1")
        assert done.returncode == 1
        assert "the job did not start (exit 1)" in done.stderr
        assert "the hosts have 1 slot" in done.stderr
        assert book.left() == {}
