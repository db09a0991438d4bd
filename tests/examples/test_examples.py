"""Every example runs as its help says, and reaches what it promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.launch import EXAMPLES, run_example

AVERAGING = ["allreduce", "hierarchical_neighbor_allreduce", "neighbor_allreduce"]
COMMUNICATING = [*AVERAGING, "gradient_allreduce"]


def digits(tmp_path: Path, name: str, *arguments: str) -> dict[str, float]:
    file = tmp_path / "result.json"
    run_example(
        EXAMPLES / "pytorch_digits.py",
        *("--dist-optimizer", name, "--json", str(file), *arguments),
        np=4,
        bfrun_options=["--ranks-per-machine", "2"],
    )
    result: dict[str, float] = json.loads(file.read_text())
    return result


@pytest.mark.parametrize(
    "arguments",
    [
        ["gradient_allreduce"],
        *([name, *style] for name in AVERAGING for style in ([], ["--atc-style"])),
    ],
    ids=" ".join,
)
def test_digits_by_class(tmp_path: Path, arguments: list[str]) -> None:
    """Only a rank that communicates knows digits that it never saw."""
    result = digits(tmp_path, *arguments, "--shards", "by-class", "--epochs", "30")
    assert result["worst_rank_accuracy"] >= 0.95
    assert result["averaged_model_accuracy"] >= 0.95


def test_digits_without_communication_fails(tmp_path: Path) -> None:
    result = digits(tmp_path, "local", "--shards", "by-class", "--epochs", "10")
    assert result["worst_rank_accuracy"] < 0.5


@pytest.mark.parametrize("name", COMMUNICATING)
def test_digits_random_shards(tmp_path: Path, name: str) -> None:
    result = digits(tmp_path, name, "--epochs", "12")
    assert result["worst_rank_accuracy"] >= 0.97


@pytest.mark.parametrize("name", [*COMMUNICATING, "horovod", "ddp", "local"])
def test_benchmark(tmp_path: Path, name: str) -> None:
    file = tmp_path / "result.json"
    counts = ["--num-warmup-batches", "1", "--num-batches-per-iter", "2"]
    output = run_example(
        EXAMPLES / "pytorch_benchmark.py",
        *("--model", "lenet", "--batch-size", "4", "--num-iters", "2", *counts),
        *("--dist-optimizer", name, "--json", str(file)),
        np=2,
    )
    assert "total img/sec on 2 ranks" in output
    assert json.loads(file.read_text())["images_per_second"] > 0


def test_benchmark_takes_the_options_of_bluefog(tmp_path: Path) -> None:
    counts = ["--num-warmup-batches", "0", "--num-batches-per-iter", "1"]
    output = run_example(
        EXAMPLES / "pytorch_benchmark.py",
        *("--model", "lenet", "--batch-size", "2", "--num-iters", "1", *counts),
        *("--num-classes", "7", "--no-cuda", "--profiler", "--atc-style"),
        "--disable-dynamic-topology",
        np=2,
    )
    assert "CPU total" in output
    assert "total img/sec on 2 ranks" in output


def test_benchmark_of_resnet18(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    counts = ["--num-warmup-batches", "0", "--num-batches-per-iter", "1"]
    run_example(
        EXAMPLES / "pytorch_benchmark.py",
        *("--model", "resnet18", "--image-size", "64", "--batch-size", "2"),
        *("--num-iters", "2", *counts, "--json", str(file)),
        *("--dist-optimizer", "hierarchical_neighbor_allreduce"),
        np=4,
        bfrun_options=["--ranks-per-machine", "2"],
    )
    assert len(json.loads(file.read_text())["images_per_second_per_rank"]) == 4


@pytest.mark.parametrize("dynamic", [True, False])
def test_average_consensus(tmp_path: Path, dynamic: bool) -> None:
    picture = tmp_path / "consensus.png"
    output = run_example(
        EXAMPLES / "pytorch_average_consensus.py",
        *("--data-size", "1000", "--max-iters", "60"),
        *("--save-plot-file", str(picture)),
        *(["--enable-dynamic-topology"] if dynamic else []),
        np=4,
    )
    errors = [
        float(line.rsplit(" ", 1)[1])
        for line in output.splitlines()
        if "relative error at last iteration" in line
    ]
    assert len(errors) == 4
    assert max(errors) < 1e-12
    assert picture.stat().st_size > 1000
