"""Tests the program between mpirun and a rank."""

import os
import subprocess
import sys

import pytest

from bfrun.agent import mpi_rank
from bfrun.agent.mpi_rank import (
    decode_report,
    encode_report,
    rank_environment,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.launch import ROOT
from tests.support.stand_in import replace_in

MARK = "--mark--"


def run(*command, environ=None, gpus_per_rank=0):
    body = "import sys; from bfrun.agent import mpi_rank; "
    body += f"mpi_rank.main(sys.argv[1], {gpus_per_rank}, sys.argv[2:])"
    done = subprocess.run(
        [sys.executable, "-c", body, MARK, *command],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
    )
    said, _, word = done.stderr.partition(MARK.encode())
    return done, said, decode_report(word.strip())


@pytest.mark.parametrize(
    "environ",
    [
        {
            "OMPI_COMM_WORLD_RANK": "3",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        {
            "PMI_RANK": "3",
            "MPI_LOCALRANKID": "1",
            "PMI_SIZE": "4",
            "MPI_LOCALNRANKS": "2",
        },
    ],
)
def test_torchs_variables_are_set(environ, monkeypatch):
    replace_in(monkeypatch, mpi_rank, "os", sched_getaffinity=lambda pid: range(8))
    made = rank_environment(environ)
    assert [made[n] for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] == ["3", "1", "4"]
    assert (made["LOCAL_WORLD_SIZE"], made["OMP_NUM_THREADS"]) == ("2", "4")
    assert (
        rank_environment({**environ, "OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    )


def test_a_rank_that_fails_is_reported_with_its_last_words():
    body = "echo out; echo first >&2; printf last >&2; exit 3"
    done, said, report = run("sh", "-c", body, environ={"PMI_RANK": "5"})
    assert done.returncode == 3
    assert done.stdout == b"out\n"
    assert said == b"first\nlast\n"
    assert (report["rank"], report["status"], report["tail"]) == (
        5,
        3,
        ["first", "last"],
    )
    assert report["left"] == 0


def test_a_signal_is_told_as_a_shell_tells_it():
    done, _, report = run("sh", "-c", "kill -KILL $$")
    assert (done.returncode, report["status"]) == (137, -9)


def test_a_command_that_does_not_exist():
    done, _, report = run("/no/such/command")
    assert done.returncode == 127
    assert "'/no/such/command' could not be started" in report["error"]


def test_children_that_hold_the_output_open_are_ended():
    done, _, report = run("sh", "-c", "sleep 60 & exit 0")
    assert done.returncode == 0
    assert report["left"] == 0


def test_a_host_with_too_few_gpus_starts_nothing():
    environ = {"PMI_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}
    done, said, report = run("echo", "started", environ=environ, gpus_per_rank=2)
    assert (done.returncode, done.stdout, said) == (1, b"", b"")
    assert "needs 2 GPUs for 1 rank, but it has 0" in report["error"]


def test_a_report_that_was_torn_apart_is_refused():
    word = encode_report("", {"rank": 1})
    assert decode_report(word.strip()) == {"rank": 1}
    for torn in (word[:-9], b"", word.replace(b"e", b"!")):
        with pytest.raises(ValueError):  # noqa: PT011 (base64's, zlib's or json's)
            decode_report(torn)
