"""The benchmarks of operations and training on the fake's devices."""

import argparse
import json
from pathlib import Path
from unittest import mock

import pytest

import bluecomm as bf
from bluecomm.bench import ops, train
from bluecomm.bench.training import measuring
from bluecomm.bench.training.contenders import default_names
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.fakegpu.transports import STAGED

pytestmark = pytest.mark.mp
NAMES = ["allreduce_", "compressed_allreduce", "one_peer", "win_update"]


def parse(word: str, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    ops.add_parser(subparsers)
    train.add_parser(subparsers)
    return parser.parse_args([word, "--device", "cuda", "--rounds", "1", *arguments])


SHORT = ["--sizes", "64", "--round-s", "1e-6"]
ONE_STEP = ["--layers", "2x1K", "--steps", "1", "--warmup", "0"]


def run_both(folder: Path) -> tuple[int, int, str]:
    files = [["--json", str(folder / f"{word}.json")] for word in ("ops", "train")]
    of_ops = parse("ops", *SHORT, "--operations", *NAMES, *files[0])
    of_train = parse("train", *ONE_STEP, *files[1])
    return of_ops.run(of_ops), of_train.run(of_train), str(bf.local_device())


@pytest.mark.parametrize("path", ["nccl", "staged"])
def test_operations_and_steps_are_timed_on_the_gpu_of_each_rank(tmp_path, path):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path}
    found = run_ranks_on_gpus(2, run_both, tmp_path, environment=environment)
    assert found == [(0, 0, "cuda:0"), (0, 0, "cuda:1")]
    results = json.loads((tmp_path / "ops.json").read_text())
    assert results["about"]["device"] == "cuda"
    assert results["about"]["device_transport"] == path
    measured = {one["operation"]: one["library"] for one in results["measurements"]}
    assert measured == {
        "allreduce_": f"bluecomm, cuda, {path}",
        "compressed_allreduce": f"bluecomm, cuda, {path}",
        "one_peer": f"bluecomm, cuda, {path}",
        "win_update": "bluecomm, cuda, staged",
    }
    report = json.loads((tmp_path / "train.json").read_text())
    assert report["model"] == f"2x1K, cuda, {path}"
    paths = {one["contender"]: one["path"] for one in report["times"]}
    assert {*paths} == {*default_names(with_groups=False)}
    assert paths["none"] == ""
    assert paths["gradient_allreduce"] == path
    assert paths["neighbor_allreduce"] == path


def run_misled() -> list[int]:
    """Run both in a job that takes itself for one with NCCL."""
    of_ops = parse("ops", *SHORT, "--operations", "allreduce_")
    of_train = parse("train", *ONE_STEP, "--algorithms", "gradient_allreduce")
    with (
        mock.patch.object(ops, "job_path", return_value="nccl"),
        mock.patch.object(measuring, "job_path", return_value="nccl"),
    ):
        return [of_ops.run(of_ops), of_train.run(of_train)]


def test_times_of_another_path_than_the_one_asked_for_are_refused():
    found = run_ranks_on_gpus(2, run_misled, environment=STAGED)
    assert found == [[1, 1], [1, 1]]
