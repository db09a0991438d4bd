"""Every example accepts its options and reaches the promised accuracy."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from bluecomm.optim import algorithm_names
from dist_optimizer import WITH_QADAM
from tests.examples.launch import EXAMPLES, run_each, run_example
from tests.support.trainers import TRAINER_LIMIT_S

AVERAGING = ["allreduce", "hierarchical_neighbor_allreduce", "neighbor_allreduce"]
COMMUNICATING = [*AVERAGING, "gradient_allreduce"]
CODED = ["bytegrad", *WITH_QADAM]
# Its result depends on the speed of the ranks.
QUORUM = "quorum_diloco"


BY_CLASS = ["--shards", "by-class", "--epochs", "20"]
BY_CLASS += ["--batch-size", "32", "--lr", "0.1"]
DIGITS = {
    # Only by communication can a rank recognise digits that it never saw.
    **{
        " ".join(["by class", *arguments]): [*arguments, *BY_CLASS]
        for arguments in (
            ("gradient_allreduce",),
            *((name, *style) for name in AVERAGING for style in ((), ("--atc-style",))),
        )
    },
    "by class local": ["local", *BY_CLASS],
    **{f"random {name}": [name, "--epochs", "12"] for name in [*COMMUNICATING, *CODED]},
    **{f"by class {name}": [name, *BY_CLASS] for name in WITH_QADAM},
    f"random {QUORUM}": [QUORUM, "--epochs", "12"],
    f"by class {QUORUM}": [QUORUM, *BY_CLASS],
}


@pytest.fixture(scope="module")
def of_two_machines() -> dict[str, Any]:
    """Return the results of examples on two machines of two ranks, by case."""
    counts = ["--num-warmup-batches", "0", "--num-batches-per-iter", "1"]
    resnet18 = ["--model", "resnet18", "--image-size", "64", "--batch-size", "2"]
    resnet18 += ["--num-iters", "2", *counts]
    resnet18 += ["--dist-optimizer", "hierarchical_neighbor_allreduce"]
    digits = EXAMPLES / "pytorch_digits.py"
    cases: dict[str, tuple[Path, list[str]]] = {
        case: (digits, ["--dist-optimizer", *arguments])
        for case, arguments in DIGITS.items()
    }
    cases["resnet18"] = EXAMPLES / "pytorch_benchmark.py", resnet18
    return run_each(cases, np=4, bfrun_options=["--ranks-per-machine", "2"])[0]


@pytest.mark.parametrize("case", DIGITS)
def test_digits(of_two_machines: dict[str, Any], case: str) -> None:
    result = of_two_machines[case]
    # Where each rank waits up to 0.6 s before each epoch, the worst has 94.4 %.
    slack = 0.05 if case.endswith(QUORUM) else 0.0
    if case == "by class local":
        assert result["worst_rank_accuracy"] < 0.5
    elif case.startswith("by class"):
        assert result["worst_rank_accuracy"] >= 0.95 - slack
        assert result["averaged_model_accuracy"] >= 0.95 - slack
    else:
        assert result["worst_rank_accuracy"] >= 0.97 - slack


def test_benchmark_of_resnet18(of_two_machines: dict[str, Any]) -> None:
    assert len(of_two_machines["resnet18"]["images_per_second_per_rank"]) == 4


TIMED = [
    *(*COMMUNICATING, "horovod", "local", "ddp"),
    *("win_put", "pull_get", "push_sum"),
]

DDP_OVER_BLUECOMM = "ddp over bluecomm"


def benchmarks() -> dict[str, tuple[Path, list[str]]]:
    """Return a case for each algorithm, and one with BlueFog's options."""
    script = EXAMPLES / "pytorch_benchmark.py"
    small = ["--model", "lenet", "--batch-size", "4", "--num-iters", "2"]
    small += ["--num-warmup-batches", "1", "--num-batches-per-iter", "2"]
    theirs = ["--model", "lenet", "--batch-size", "2", "--num-iters", "1"]
    theirs += ["--num-warmup-batches", "0", "--num-batches-per-iter", "1"]
    theirs += ["--num-classes", "7", "--no-cuda", "--profiler", "--atc-style"]
    return {
        **{
            f"time {name}": (script, ["--dist-optimizer", name, *small])
            for name in TIMED
        },
        f"time {DDP_OVER_BLUECOMM}": (
            script,
            ["--dist-optimizer", "ddp", "--ddp-backend", "bluecomm", *small],
        ),
        "options": (script, [*theirs, "--disable-dynamic-topology"]),
    }


# Examples with the trainers of others.
TRAINERS = ["lightning_digits", "accelerate_digits", "hf_text_classification"]
ELASTIC = "elastic_digits"
# These learn in a few epochs; of the others the test sees that they run.
LEARNING = ["gradient_allreduce", "neighbor_allreduce"]
BRIEF = ["--epochs", "1", "--batch-size", "128"]
TEXTS = ["--dist-optimizer", "gradient_allreduce"]
RECORDIO = {"neighbor_allreduce": [], "async": ["--uneven"]}


def trainings(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Return cases of mnist, and of a ResNet that resumes from ``folder``."""
    mnist, resnet = (EXAMPLES / f"pytorch_{name}.py" for name in ("mnist", "resnet"))
    recipe = ["--lr", "0.02", "--momentum", "0.9", "--batch-size", "32"]
    few = ["--synthetic", "--samples", "16", "--batch-size", "4"]
    few += ["--warmup-epochs", "1", "--base-lr", "0.003"]
    kept = ["--checkpoint-dir", str(folder)]
    return {
        **{
            f"mnist {name}": (
                mnist,
                ["--dist-optimizer", name, "--epochs", "5", *recipe],
            )
            for name in ("gradient_allreduce", "neighbor_allreduce")
        },
        **{
            f"{stem} {name}": (
                EXAMPLES / f"{stem}.py",
                [
                    *("--dist-optimizer", name),
                    *(("--epochs", "4") if name in LEARNING else BRIEF),
                ],
            )
            for stem in (*TRAINERS, ELASTIC)
            for name in algorithm_names()
        },
        **{
            f"texts {batches}": (
                EXAMPLES / "pytorch_text_buckets.py",
                ["--batches", batches, "--texts", "509", "--epochs", "8", *TEXTS],
            )
            for batches in ("plain", "balanced", "tokens")
        },
        **{
            f"recordio {name}": (
                EXAMPLES / "pytorch_recordio.py",
                ["--epochs", "5", "--dist-optimizer", name, *options],
            )
            for name, options in RECORDIO.items()
        },
        "mnist synthetic": (
            mnist,
            ["--synthetic", "--samples", "512", "--batch-size", "32"],
        ),
        "whole": (resnet, [*few, "--epochs", "2"]),
        "half": (resnet, [*few, "--epochs", "1", *kept]),
        "resumed": (resnet, [*few, "--epochs", "2", *kept]),
    }


@dataclasses.dataclass
class OfTwoRanks:
    """Results of the examples on two ranks, all from one job.

    Attributes:
        kept: Folder of the checkpoints.
        results: Reported results, by case.
        output: Printed output.
    """

    kept: Path
    results: dict[str, Any]
    output: str


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> OfTwoRanks:
    kept = tmp_path_factory.mktemp("kept")
    cases = {**benchmarks(), **trainings(kept)}
    return OfTwoRanks(kept, *run_each(cases, np=2, limit_s=TRAINER_LIMIT_S))


@pytest.mark.parametrize("name", [*TIMED, DDP_OVER_BLUECOMM])
def test_benchmark(of_two_ranks: OfTwoRanks, name: str) -> None:
    assert of_two_ranks.results[f"time {name}"]["images_per_second"] > 0


def test_benchmark_takes_the_options_of_bluefog(of_two_ranks: OfTwoRanks) -> None:
    assert "CPU total" in of_two_ranks.output
    assert of_two_ranks.output.count("total img/sec on 2 ranks") == len(benchmarks())
    assert of_two_ranks.results["options"]["images_per_second"] > 0


@pytest.mark.parametrize("batches", ["plain", "balanced", "tokens"])
def test_text_buckets(of_two_ranks: OfTwoRanks, batches: str) -> None:
    result = of_two_ranks.results[f"texts {batches}"]
    assert result["worst_rank_accuracy"] >= 0.9
    # Each text once in each of eight epochs.
    assert result["texts"] == 8 * 509
    if batches == "plain":
        assert result["tokens_of_slowest"] > 1.05
    else:
        assert result["tokens_of_slowest"] < 1.02


@pytest.mark.parametrize("name", RECORDIO)
def test_recordio(of_two_ranks: OfTwoRanks, name: str) -> None:
    result = of_two_ranks.results[f"recordio {name}"]
    assert result["counted"] == 5 * [result["records"]]
    assert result["worst_rank_accuracy"] >= 0.9


def test_recordio_counts_each_record_once_after_a_kill() -> None:
    output = run_example(
        EXAMPLES / "pytorch_recordio.py",
        *("--kill", "0", "--epochs", "2"),
        np=3,
        bfrun_options=["--on-failure", "continue"],
    )
    pattern = r"epoch (\d): (\d+) of (\d+) records counted, (\d) ranks"
    lines = re.findall(pattern, output)
    assert [(epoch, ranks) for epoch, *_, ranks in lines] == [("1", "3"), ("2", "2")]
    assert all(counted == records for _, counted, records, _ in lines)


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


def test_average_consensus_without_waiting() -> None:
    """The distance from the mean depends on the ranks' pace; the sums do not."""
    output = run_example(
        EXAMPLES / "pytorch_average_consensus.py",
        *("--data-size", "1000", "--max-iters", "60", "--asynchronous-mode"),
        "--enable-dynamic-topology",
        np=4,
    )
    kept = re.findall(
        r"p: [\d.]+, mean over all ranks: ([\d.]+) \(should be 1\); "
        r"the mean of all vectors has moved by (\S+) ",
        output,
    )
    assert len(kept) == 4
    # A rank that runs before the others start gives away almost all of its p.
    assert all(float(mean) == 1 and float(moved) < 1e-12 for mean, moved in kept)
    assert output.count("relative error at last iteration") == 4


@pytest.mark.parametrize("task", ["logistic_regression", "linear_regression"])
def test_optimization(tmp_path: Path, task: str) -> None:
    """Exact methods reach the known optimum, the others stop at their bias."""
    exact = ["exact_diffusion", "extra", "gradient_tracking", "momentum_tracking"]
    exact.append("push_diging")
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
    # A ring of four has an eigenvalue that d2 refuses.
    assert "d2                   left out: d2 needs a mixing matrix" in output
    assert picture.stat().st_size > 1000


def test_mnist(of_two_ranks: OfTwoRanks) -> None:
    """On digits: averaging with neighbors is as good as the mean of all gradients."""
    for name in ("gradient_allreduce", "neighbor_allreduce"):
        result = of_two_ranks.results[f"mnist {name}"]
        assert result["averaged_model_accuracy"] > 0.85
        assert result["train_samples_per_rank"] == 718


@pytest.mark.parametrize("name", algorithm_names())
@pytest.mark.parametrize("stem", TRAINERS)
def test_trainers_of_others(of_two_ranks: OfTwoRanks, stem: str, name: str) -> None:
    result = of_two_ranks.results[f"{stem} {name}"]
    assert result["ranks"] == 2
    assert result["dist_optimizer"] == name
    assert math.isfinite(result["consensus_distance"])
    assert result["averaged_model_accuracy"] > (0.85 if name in LEARNING else 0.05)


@pytest.mark.parametrize("name", algorithm_names())
def test_elastic(of_two_ranks: OfTwoRanks, name: str) -> None:
    result = of_two_ranks.results[f"{ELASTIC} {name}"]
    assert result["dist_optimizer"] == name
    assert result["own_accuracy"] > (0.85 if name in LEARNING else 0.05)


def test_mnist_without_files(of_two_ranks: OfTwoRanks) -> None:
    result = of_two_ranks.results["mnist synthetic"]
    assert result["train_samples_per_rank"] == 256
    assert result["averaged_model_accuracy"] > 0.85


def test_resnet_goes_on_from_its_checkpoints(of_two_ranks: OfTwoRanks) -> None:
    whole, half, resumed = (
        of_two_ranks.results[case] for case in ("whole", "half", "resumed")
    )
    assert [rank["first_epoch"] for rank in resumed["ranks"]] == [1, 1]
    losses = [rank["loss"] for rank in resumed["ranks"]]
    assert losses == [rank["loss"] for rank in whole["ranks"]]
    assert losses != [rank["loss"] for rank in half["ranks"]]
    names = sorted(path.name for path in of_two_ranks.kept.iterdir())
    assert names == [f"epoch-0002-rank-{rank}-of-2.pt" for rank in (0, 1)]
