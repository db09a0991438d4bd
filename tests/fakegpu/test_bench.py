"""The benchmark of operations on tensors of the fake's devices."""

import argparse
import json
from pathlib import Path

import pytest

import bluecomm as bf
from bluecomm.bench import ops
from tests.support.fakegpu.ranks import run_ranks_on_gpus

pytestmark = pytest.mark.mp
NAMES = ["allreduce_", "compressed_allreduce", "one_peer", "win_update"]


def run_ops(folder: Path, *arguments: str) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    ops.add_parser(parser.add_subparsers())
    short = ["--sizes", "64", "--rounds", "1", "--round-s", "1e-6"]
    words = ["ops", "--device", "cuda", *short, "--json", str(folder / "ops.json")]
    args = parser.parse_args([*words, *arguments])
    return args.run(args), str(bf.local_device())


def test_all_operations_are_timed_on_the_gpu_of_each_rank(tmp_path):
    found = run_ranks_on_gpus(2, run_ops, tmp_path, "--operations", *NAMES)
    assert found == [(0, "cuda:0"), (0, "cuda:1")]
    results = json.loads((tmp_path / "ops.json").read_text())
    assert results["about"]["device"] == "cuda"
    assert {one["library"] for one in results["measurements"]} == {"bluecomm, cuda"}
    measured = {one["operation"] for one in results["measurements"]}
    assert measured == set(NAMES) - {"compressed_allreduce"}
    assert "compressed_allreduce does not take tensors on a GPU" in results["notes"]
