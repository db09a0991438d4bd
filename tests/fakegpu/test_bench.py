"""The benchmarks of operations and training on the fake's devices."""

import argparse
import json
from pathlib import Path

import pytest

import bluecomm as bf
from bluecomm.bench import ops, train
from bluecomm.bench.training.contenders import default_names
from tests.support.fakegpu.ranks import run_ranks_on_gpus

pytestmark = pytest.mark.mp
NAMES = ["allreduce_", "compressed_allreduce", "one_peer", "win_update"]


def run_both(folder: Path) -> tuple[int, int, str]:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    ops.add_parser(subparsers)
    train.add_parser(subparsers)

    def run(word: str, *arguments: str) -> int:
        words = [word, "--device", "cuda", "--json", str(folder / f"{word}.json")]
        args = parser.parse_args([*words, "--rounds", "1", *arguments])
        code: int = args.run(args)
        return code

    short = ["--sizes", "64", "--round-s", "1e-6"]
    of_ops = run("ops", *short, "--operations", *NAMES)
    of_train = run("train", "--layers", "2x1K", "--steps", "1", "--warmup", "0")
    return of_ops, of_train, str(bf.local_device())


def test_operations_and_steps_are_timed_on_the_gpu_of_each_rank(tmp_path):
    found = run_ranks_on_gpus(2, run_both, tmp_path)
    assert found == [(0, 0, "cuda:0"), (0, 0, "cuda:1")]
    results = json.loads((tmp_path / "ops.json").read_text())
    assert results["about"]["device"] == "cuda"
    assert {one["library"] for one in results["measurements"]} == {"bluecomm, cuda"}
    measured = {one["operation"] for one in results["measurements"]}
    assert measured == set(NAMES)
    report = json.loads((tmp_path / "train.json").read_text())
    assert report["model"] == "2x1K, cuda"
    assert {one["contender"] for one in report["times"]} == {
        *default_names(with_groups=False)
    }
