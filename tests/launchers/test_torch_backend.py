"""Each launcher starts scripts whose process groups use bluecomm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.launchers.support import findings, run_launcher
from tests.support.entry_points import install_entry_points
from tests.support.launch import ROOT
from tests.support.plain_ranks import run_ranks_of_env
from tests.support.ports import held_port
from tests.support.python_path import python_path

pytestmark = pytest.mark.launchers

RANKS = 2
SCRIPT = "tests.launchers.torch_script"
BOTH = "tests.launchers.both_apis"
BFRUN = [sys.executable, "-m", "bfrun", "-np", str(RANKS)]
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run"),
    *("--nproc-per-node", str(RANKS)),
]


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """Return variables with which Python finds the entry points of bluecomm."""
    site = install_entry_points(tmp_path_factory.mktemp("torch") / "site")
    return {"PYTHONPATH": python_path(site, ROOT), "OMP_NUM_THREADS": "1"}


def run_by_hand(words, environ):
    """Run two ranks, and return what they printed; see ``run_ranks_of_env``."""
    done = run_ranks_of_env(RANKS, words, environ)
    assert [one.returncode for one in done] == [0] * RANKS, done
    return [json.loads(one.stdout) for one in done]


@pytest.fixture(scope="module")
def by_gloo(environ):
    """Return what the script of torch trains with gloo."""
    found = run_by_hand(lambda rank: ["-m", SCRIPT, "gloo"], environ)
    return found[0]["trained"][0]


def check_trained(found, by_gloo, groups=1):
    assert [one["rank"] for one in found] == list(range(RANKS))
    for one in found:
        assert one["trained"] == [pytest.approx(by_gloo, abs=1e-6)] * groups


@pytest.mark.parametrize(
    ("launcher", "groups"),
    [(TORCHRUN, ["{}", "{}"]), ([*BFRUN, sys.executable], ["{}"])],
    ids=["torchrun", "bfrun"],
)
def test_a_script_of_torch_needs_one_other_word(launcher, groups, environ, by_gloo):
    command = [*launcher, "-m", SCRIPT, "bluecomm", *groups]
    done = run_launcher(command, environ=environ)
    assert done.returncode == 0, done.stderr
    check_trained(findings(done), by_gloo, len(groups))
    assert "bluecomm" not in done.stderr


def test_each_way_to_name_a_store(environ, by_gloo, tmp_path):
    def words(rank):
        told = {"rank": rank, "world_size": RANKS}
        groups = [
            {"init_method": "env://"},
            {"init_method": f"tcp://127.0.0.1:{ports[0]}", **told},
            {"init_method": f"file://{tmp_path}/file", **told},
            {"store": ["file", f"{tmp_path}/store"], **told},
            {"store": ["tcp", ports[1]], **told},
        ]
        return ["-m", SCRIPT, "cpu:bluecomm", *map(json.dumps, groups)]

    with held_port() as one, held_port() as other:
        ports = [one, other]
        found = run_by_hand(words, environ)
    check_trained(found, by_gloo, groups=5)
    # No secret is left beside the files.
    assert not [path for path in Path(tmp_path).iterdir() if "secret" in path.name]


@pytest.mark.parametrize(
    ("launcher", "source"),
    [
        (TORCHRUN, "init_process_group, FileStore"),
        ([*BFRUN, sys.executable], "bfrun"),
    ],
    ids=["torchrun", "bfrun"],
)
def test_both_apis_find_one_world(launcher, source, environ, tmp_path):
    done = run_launcher([*launcher, "-m", BOTH, str(tmp_path)], environ=environ)
    assert done.returncode == 0, done.stderr
    found = findings(done)
    assert [one["rank"] for one in found] == list(range(RANKS))
    assert all(one["source"].startswith(source) for one in found)


def test_torchfrtrace_reads_the_dumps_of_failed_ranks(environ, tmp_path):
    body = (
        "import json, torch\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('bluecomm')\n"
        "rank, x = dist.get_rank(), torch.ones(3)\n"
        "dist.all_reduce(x)\n"
        "work = dist.all_gather([x + 1, x + 1], x, async_op=True)\n"
        "work.wait()\n"
        "dist.all_gather_into_tensor(torch.ones(4), torch.ones(2))\n"
        "try:\n"
        "    dist.all_reduce(x) if rank else dist.broadcast(x, 0)\n"
        "except Exception as error:\n"
        "    print(json.dumps({'rank': rank, 'error': type(error).__name__}))\n"
    )
    asked = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dumps/trace_"}
    found = run_by_hand(lambda rank: ["-c", body], {**environ, **asked})
    assert [one["error"] for one in found] == ["MismatchError"] * RANKS
    for rank in range(RANKS):
        told = json.loads((tmp_path / f"dumps/bluecomm-{rank}.json").read_text())
        assert told["rank"] == rank
        last = told["collectives"].pop()
        assert last["operation"] == ("all_reduce" if rank else "broadcast")
        assert last["error"].startswith("MismatchError: ")
        assert last["took_s"] is None
        assert [one["error"] for one in told["collectives"]] == [""] * 3
        assert all(one["took_s"] is not None for one in told["collectives"])
        assert all("<string>:" in str(one["called_at"]) for one in told["collectives"])
    reader = ["-m", "torch.distributed.flight_recorder.fr_trace"]
    done = run_launcher([sys.executable, *reader, f"{tmp_path}/dumps"])
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "does not match found collective type" in said
    assert said.count("Error type:") == 1


def test_both_apis_find_one_world_by_hand(environ, tmp_path):
    found = run_by_hand(lambda rank: ["-m", BOTH, str(tmp_path)], environ)
    assert [one["rank"] for one in found] == list(range(RANKS))


def test_other_ranks_than_those_of_bfrun_are_refused(environ, tmp_path):
    body = (
        "import os, sys\n"
        "import torch.distributed as dist\n"
        "rank = 1 - int(os.environ['BLUECOMM_RANK'])\n"
        "where = f'file://{sys.argv[1]}'\n"
        "try:\n"
        "    dist.init_process_group('bluecomm', where, world_size=2, rank=rank)\n"
        "except Exception as error:\n"
        "    sys.stdout.write(f'{error}\\n')\n"
    )
    command = [*BFRUN, sys.executable, "-c", body, str(tmp_path / "store")]
    done = run_launcher(command, environ=environ)
    assert done.returncode == 0, done.stderr
    for rank in range(RANKS):
        said = f"rank {1 - rank} of 2 for torch, but rank {rank} of 2 in bluecomm's"
        assert said in done.stdout
