"""Every example runs as its help says, and reaches what it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.examples.launch import EXAMPLES, run_example, run_example_with_each

AVERAGING = ["allreduce", "hierarchical_neighbor_allreduce", "neighbor_allreduce"]
COMMUNICATING = [*AVERAGING, "gradient_allreduce"]


BY_CLASS = ["--shards", "by-class", "--epochs"]
DIGITS = {
    # Only a rank that communicates knows digits that it never saw.
    **{
        ("by class", *arguments): [*arguments, *BY_CLASS, "30"]
        for arguments in (
            ("gradient_allreduce",),
            *((name, *style) for name in AVERAGING for style in ((), ("--atc-style",))),
        )
    },
    ("by class", "local"): ["local", *BY_CLASS, "10"],
    **{("random", name): [name, "--epochs", "12"] for name in COMMUNICATING},
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Any]:
    """What the digits example reports, by case."""
    results = run_example_with_each(
        EXAMPLES / "pytorch_digits.py",
        [["--dist-optimizer", *arguments] for arguments in DIGITS.values()],
        tmp_path_factory.mktemp("digits"),
        np=4,
        bfrun_options=["--ranks-per-machine", "2"],
    )
    return dict(zip(DIGITS, results, strict=True))


@pytest.mark.parametrize("case", DIGITS, ids=" ".join)
def test_digits(digits: dict[tuple[str, ...], Any], case: tuple[str, ...]) -> None:
    result = digits[case]
    if case == ("by class", "local"):
        assert result["worst_rank_accuracy"] < 0.5
    elif case[0] == "by class":
        assert result["worst_rank_accuracy"] >= 0.95
        assert result["averaged_model_accuracy"] >= 0.95
    else:
        assert result["worst_rank_accuracy"] >= 0.97


def test_benchmark(tmp_path: Path) -> None:
    counts = ["--num-warmup-batches", "1", "--num-batches-per-iter", "2"]
    small = ["--model", "lenet", "--batch-size", "4", "--num-iters", "2", *counts]
    names = [*COMMUNICATING, "horovod", "local", "ddp"]
    results = run_example_with_each(
        EXAMPLES / "pytorch_benchmark.py",
        [["--dist-optimizer", name, *small] for name in names],
        tmp_path,
        np=2,
    )
    assert len(results) == len(names)
    assert all(result["images_per_second"] > 0 for result in results)


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
