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
    asynchronous = ["win_put", "pull_get", "push_sum"]
    names = [*COMMUNICATING, "horovod", "local", "ddp", *asynchronous]
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


@pytest.mark.parametrize("task", ["logistic_regression", "linear_regression"])
def test_optimization(tmp_path: Path, task: str) -> None:
    """Exact methods reach the known optimum, the others stop at their bias."""
    exact = ["exact_diffusion", "extra", "gradient_tracking", "momentum_tracking"]
    biased = ["consensus", "diffusion", "decentlam"]
    file, picture = tmp_path / "errors.json", tmp_path / "errors.png"
    output = run_example(
        EXAMPLES / "pytorch_optimization.py",
        *("--method", ",".join([*exact, *biased, "d2"]), "--task", task),
        *("--max-iter", "260", "--json", str(file), "--save-plot-file", str(picture)),
        np=4,
    )
    errors = json.loads(file.read_text())
    assert all(errors[name][-1] < 1e-6 for name in exact)
    assert all(errors[name][-1] > 1e-2 for name in biased)
    # A ring of four has an eigenvalue that d2 does not take.
    assert "d2                   left out: d2 needs a mixing matrix" in output
    assert picture.stat().st_size > 1000


def test_mnist(tmp_path: Path) -> None:
    """On digits: averaging with neighbors is as good as the mean of all gradients."""
    recipe = ["--lr", "0.02", "--momentum", "0.9", "--batch-size", "32"]
    results = run_example_with_each(
        EXAMPLES / "pytorch_mnist.py",
        [
            ["--dist-optimizer", name, "--epochs", "5", *recipe]
            for name in ("gradient_allreduce", "neighbor_allreduce")
        ],
        tmp_path,
        np=2,
    )
    assert all(result["averaged_model_accuracy"] > 0.85 for result in results)
    assert all(result["train_samples_per_rank"] == 718 for result in results)


def test_resnet_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    small = ["--synthetic", "--samples", "16", "--batch-size", "4"]
    kept = ["--checkpoint-dir", str(tmp_path / "kept")]
    recipe = ["--warmup-epochs", "1", "--base-lr", "0.003"]
    whole, half, resumed = run_example_with_each(
        EXAMPLES / "pytorch_resnet.py",
        [
            [*small, *recipe, "--epochs", "2"],
            [*small, *recipe, "--epochs", "1", *kept],
            [*small, *recipe, "--epochs", "2", *kept],
        ],
        tmp_path,
        np=2,
    )
    assert [rank["first_epoch"] for rank in resumed["ranks"]] == [1, 1]
    losses = [rank["loss"] for rank in resumed["ranks"]]
    assert losses == [rank["loss"] for rank in whole["ranks"]]
    assert losses != [rank["loss"] for rank in half["ranks"]]
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == [f"epoch-0002-rank-{rank}-of-2.pt" for rank in (0, 1)]
