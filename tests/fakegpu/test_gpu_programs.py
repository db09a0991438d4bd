"""The checks of ``make test-gpu`` over the fake: that they find what they look for.

Sizes are small, and times have no verdict.
"""

import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import bluecomm as bf
from tests.gpu import plugin, speed
from tests.gpu.job import Check, Job, NotRunError
from tests.gpu.pair import run_pair
from tests.gpu.parts import PARTS
from tests.gpu.ranks import run_on_device
from tests.gpu.speed import compare_speeds
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.launch import ROOT
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
CHECKS = [
    pytest.param(check, id=f"{part}: {name}")
    for part, checks in PARTS.items()
    for name, check in checks.items()
    # The variables are torch's, which has no GPU here.
    if not check.needs_gpu and not check.environment
]


@pytest.mark.parametrize("check", CHECKS)
def test_checks_pass_over_the_fake(check, tmp_path):
    try:
        assert check.run(Job(run_ranks_on_gpus, is_real=False, folder=tmp_path))
    except NotRunError as reason:  # such as one that an older torch gives
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(reason))


def test_without_a_gpu_no_check_passes(tmp_path):
    """Each is listed with the reason, and the exit code says so."""
    output = tmp_path / "found" / "lines"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "core", "--output", str(output)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2, done.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["check"] for line in lines] == [*PARTS["core"]]
    assert all(line["verdict"] == "NOT RUN" for line in lines)
    assert all("sees no GPU" in line["detail"] for line in lines)
    assert f"0 PASS, 0 FAIL, {len(lines)} NOT RUN" in done.stdout


# Runs a check in an interpreter without the packages that only the launcher needs.
FIRST_CALL = """
from pathlib import Path
from tests.gpu import __main__, one, program
from tests.gpu.core import CHECKS
from tests.gpu.job import Job, cases_of
from tests.support.fakegpu.ranks import run_ranks_on_gpus
for name in "nccl_operations", "operations", "optimizers", "windows", "nccl_survival":
    cases_of(f"tests.fakegpu.test_{name}")
job = Job(run_ranks_on_gpus, is_real=False, folder=Path())
print(CHECKS["first call, nccl"].run(job))
"""


def test_checks_need_no_package_of_the_launcher(tmp_path):
    (tmp_path / "paramiko.py").write_text("raise ImportError('paramiko')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("an allreduce of two ranks is right\n")


ON_HOST = "tests.support.pair_on_host"


# -- what the checks need besides the fake: torch.cuda, and NCCL of torch --------------


def use_memory(x: torch.Tensor) -> tuple[list[float], list[str]]:
    """Use all methods of a GPU's memory; return a sum, and what torch was asked for."""
    memory = this_memory()
    assert memory.holds(x)
    assert memory.holds(torch.ones(2))
    assert memory.holds(torch.rand(2, generator=torch.Generator()))
    # It knows the signatures, so a wrong call is a TypeError.
    functions = mock.create_autospec(torch.cuda)
    with mock.patch.object(torch, "cuda", functions):
        with memory.on_stream(memory.new_stream()), memory.on_stream(0):
            memory.synchronize()
        memory.current_stream = memory.new_stream()
        memory.current_stream = 0
        with memory.capturing():
            pass
    assert memory.host_waits == []
    total = bf.allreduce(memory.upload(x), op=bf.Sum)
    asked = [name for name, *_ in functions.mock_calls]
    return memory.download(total).tolist(), asked


def run_on_the_host(x: torch.Tensor) -> Any:
    with mock.patch("torch.cuda.synchronize", autospec=True) as synchronize:
        result = run_on_device(use_memory, [x], torch.device("cpu"))
    assert synchronize.called
    return result


def test_ranks_and_memory_of_a_gpu_call_torch_rightly():
    found = run_ranks(2, run_on_the_host, torch.ones(3), initialize=False)
    for total, asked in found:
        assert total == [2.0] * 3
        for name in ("Stream", "default_stream", "set_stream", "stream", "graph"):
            assert name in asked
        assert "current_stream().synchronize" in asked
        assert asked[-1] == "graph().__exit__"


@pytest.mark.parametrize("what", ["operations", "ddp", "speed"])
def test_the_ranks_of_the_plugin_calculate_rightly_over_gloo(what, tmp_path):
    first, second = run_pair(tmp_path, "socket", what, program=ON_HOST)
    if what == "operations":
        assert first["wrong"] == second["wrong"] == []
        assert first["sizes"] == [8, 1 << 10, 64 << 10]
    elif what == "ddp":
        assert max(first["difference"], second["difference"]) < 1e-5
        assert first["checksum"] == second["checksum"]
    else:
        assert first.keys() == second.keys() == {"8", "1024"}
        table = compare_speeds(lambda network, number: first, rounds=2)
        assert table.splitlines()[1].split()[0] == "8"


def test_a_rank_that_uses_another_network_is_an_error(tmp_path):
    variables = {"NCCL_NET_PLUGIN": "another"}
    with pytest.raises(RuntimeError, match="'via NET/Socket' is not in NCCL's log"):
        run_pair(tmp_path, "socket", "speed", variables, program=ON_HOST)


def outcome_of(check: Check, folder: Path) -> str:
    """Return the details of a success, or the reason for which it could not run."""
    try:
        return check.run(Job(run_ranks_on_gpus, is_real=True, folder=folder))
    except NotRunError as reason:
        return str(reason)


def test_unequal_paths_are_measured_or_it_is_said_why_not(tmp_path, monkeypatch):
    monkeypatch.setattr(plugin, "run_pair", partial(run_pair, program=ON_HOST))
    monkeypatch.setattr(speed, "TOLERANCE", math.inf)  # times mean nothing
    text = outcome_of(plugin.CHECKS["sockets over unequal paths"], tmp_path)
    if not text.startswith("NOT MEASURED: "):
        assert text.startswith("links of 1000 and 250 Mbit/s\n")
        assert [line.split()[0] for line in text.splitlines()[2:]] == ["8", "1024"]
