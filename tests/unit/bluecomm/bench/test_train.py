"""``train``: shapes, the emulated accelerator, contenders and results."""

import dataclasses

import pytest
import torch

from bluecomm.bench.__main__ import main
from bluecomm.bench.training import compute
from bluecomm.bench.training.compute import EmulatedModel, RealModel
from bluecomm.bench.training.contenders import Contender, default_names
from bluecomm.bench.training.measuring import (
    StepTime,
    Turn,
    summarize,
    with_baseline,
)
from bluecomm.bench.training.models import equal_layers, layers_of
from bluecomm.bench.training.report import TrainReport
from bluecomm.runtime import current_process
from tests.support.stand_in import replace_in


@pytest.mark.parametrize(
    ("model", "parameters", "millions"),
    [
        # Numbers of parameters from the papers (and examples/models).
        ("lenet", 61_706, 0.42),
        ("resnet18", 11_689_512, 1814),
        ("resnet50", 25_557_032, 4089),
        ("vgg16", 138_357_544, 15470),
        ("bert_base", 108_525_882, 13872),
    ],
)
def test_models_have_their_size(model, parameters, millions):
    layers = layers_of(model)
    assert sum(s.numel() for layer in layers for s in layer.shapes()) == parameters
    work = sum(layer.multiplications() for layer in layers)
    assert work / 1e6 == pytest.approx(millions, rel=0.01)


def test_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match=r"model must be one of .* got 'alexnet'"):
        layers_of("alexnet")


def test_equal_layers():
    assert [layer.shapes() for layer in equal_layers("2x1M")] == [[(512, 512)]] * 2
    assert [layer.shapes() for layer in equal_layers("1x0.25M")] == [[(256, 256)]]


@pytest.mark.parametrize("text", ["20", "x1M", "0x1M", "-1x1M", "ax1M"])
def test_wrong_layers_are_refused(text):
    with pytest.raises(ValueError, match="layers must be like 20x1M"):
        equal_layers(text)


def test_a_layer_is_not_empty():
    with pytest.raises(ValueError, match="a layer must have at least 4 bytes"):
        equal_layers("2x3")


def test_emulated_gradients_appear_from_the_last_layer_on():
    model = EmulatedModel(equal_layers("3x64"), step_s=0.003)
    names = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, n=name: names.append(n))
    model(torch.ones(1)).backward()
    assert names == [f"layers.{k}.values.0" for k in (2, 1, 0)]
    assert all(p.grad.shape == p.shape for p in model.parameters())


def test_the_accelerator_keeps_computing_while_the_host_is_late(monkeypatch):
    now, slept = [100.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    replace_in(monkeypatch, compute, "time", perf_counter=lambda: now[0], sleep=sleep)
    model = EmulatedModel(equal_layers("1x64"), step_s=3.0)
    loss = model(torch.ones(1))
    assert slept == [pytest.approx(1.0)]
    now[0] += 0.5  # the host does something else
    loss.backward()
    assert slept == [pytest.approx(1.0), pytest.approx(1.5)]
    model(torch.ones(1))
    assert now[0] == pytest.approx(104.0)


def test_real_layers_run_in_a_chain():
    layers = layers_of("lenet")
    model = RealModel(layers, batch_size=2)
    model(torch.ones(1)).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_contenders_are_named_with_options():
    found = Contender.parse("neighbor_allreduce:atc:static:bucket=2M")
    assert (found.name, found.order, found.is_static, found.bucket_nbytes) == (
        "neighbor_allreduce",
        "atc",
        True,
        2 << 20,
    )
    assert {"none", "ddp", "gradient_allreduce"} <= set(default_names())
    label = "sparse_loco:k=32:every=4:outer_lr=2.5:uneven_inputs=True:lr_factor=2"
    found = Contender.parse(label)
    assert (found.every, found.lr_factor) == (4, 2.0)
    assert dict(found.settings) == {"k": 32, "outer_lr": 2.5, "uneven_inputs": True}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("sgd", "algorithm must be one of none, ddp, fsdp, .*'sgd'"),
        ("ddp:atc", "ddp has no option 'atc'"),
        ("none:bucket=1M", "none has no option"),
        ("allreduce:static", "allreduce has no option"),
        ("gradient_allreduce:every=2", "averaging also atc and every=STEPS"),
        ("noloco:every=0", "noloco has no option 'every=0'"),
        ("ddp:every=2", "ddp has no option"),
        ("ddp:k=2", "ddp has no option 'k=2'.* such as outer_lr=2.0"),
        ("sparse_loco:rate=2.0", "own numbers and truth values: k, outer_lr, error_"),
        ("sparse_loco:lr_factor=0", "sparse_loco has no option 'lr_factor=0'"),
        ("sparse_loco:lr_factor=x", "for algorithms lr_factor=FACTOR"),
        ("ddp:lr_factor=2", "ddp has no option"),
        ("sparse_loco:k=many", "sparse_loco has no option 'k=many'"),
        ("sparse_loco:k=", "sparse_loco has no option 'k='"),
        ("fsdp:bucket=1M", "fsdp has no option"),
        ("fsdp:bluecomm:ordinary", "fsdp has no option 'ordinary'"),
        ("gradient_allreduce:cta", "gradient_allreduce has no option"),
    ],
)
def test_wrong_contenders_are_refused(label, message):
    with pytest.raises(ValueError, match=message):
        Contender.parse(label)


def test_the_baseline_comes_first_and_once():
    labels = [one.label for one in with_baseline(["ddp", "none", "ddp"])]
    assert labels == ["none", "ddp"]


def test_exposed_communication_is_computed_per_rank_and_round():
    def turns(alone, own):
        return [Turn(alone, 0.1), Turn(own, 0.2)]

    # Two ranks, three rounds; rank 1 is slow without communication, too.
    everyone = [
        [turns(1.0, 1.5), turns(1.0, 1.2), turns(1.0, 1.1)],
        [turns(2.0, 2.1), turns(2.0, 2.9), turns(2.0, 2.3)],
    ]
    found = summarize(Contender.parse("ddp"), 1, everyone)
    assert (found.ranks, found.contender) == (2, "ddp")
    assert found.median_ms == pytest.approx(2300)
    assert (found.min_ms, found.max_ms) == pytest.approx((2100, 2900))
    assert found.exposed_ms == pytest.approx(500)
    assert found.cpu_ms == pytest.approx(200)


@pytest.fixture
def report():
    times = [
        StepTime("none", 1, 200.0, 199.0, 201.0, 0.0, 3.0),
        StepTime("none", 8, 201.0, 199.0, 201.0, 0.0, 3.0),
        StepTime("ddp", 8, 400.0, 390.0, 410.0, 199.0, 30.0),
    ]
    return TrainReport("2x1M", [1 << 20] * 2, [0.5, 0.5], 200.0, 1, times)


def test_a_report_survives_its_file(report, tmp_path):
    file = tmp_path / "report.json"
    report.write(file)
    assert TrainReport.read(file) == report


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "report.json"
    file.write_text("[]")
    with pytest.raises(ValueError, match="expected results of format"):
        TrainReport.read(file)
    file.write_text('{"format": "bluecomm.bench.train/1", "times": [{}]}')
    with pytest.raises(ValueError, match=r"report.json: .*incomplete \('efficiency'\)"):
        TrainReport.read(file)


def test_a_report_shows_efficiency(report, capsys, tmp_path):
    assert report.efficiency(report.times[2]) == 0.5
    report.print()
    shown = capsys.readouterr().out
    assert "2x1M, 2.1 MB, emulated step 200 ms" in shown
    assert "50.0 %" in shown
    long = "hierarchical_neighbor_allreduce:static:atc"
    times = [*report.times, dataclasses.replace(report.times[0], contender=long)]
    real = dataclasses.replace(report, step_ms=None, times=times)
    real.print()
    shown = capsys.readouterr().out
    assert "emulated" not in shown
    assert "ce:static:atc" in shown  # on its own line
    file = tmp_path / "report.png"
    report.plot(str(file))
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def world_of_one():
    """Shut down the world that the benchmark has started."""
    yield
    current_process().leave()


SHORT = ("--rounds", "1", "--steps", "2", "--warmup", "1")


def test_overhead_in_a_world_of_one(capsys, world_of_one):
    options = ("--overhead", "--model", "lenet", "--algorithms", "local")
    assert main(["train", *SHORT, *options]) == 0
    assert "% of CPU time (medians of 2 pairs)" in capsys.readouterr().out


def test_more_ranks_than_the_job_has(capsys, world_of_one):
    assert main(["train", *SHORT, "--scaling", "1,8"]) == 2
    assert "--scaling 8: the job has only 1 rank" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--overhead", "--json", "x.json"), "only prints its results"),
        (("--slow-rank", "0:2", "--step-ms", "1"), "more than 1 rank; the job has 1"),
        (("--json", "no/such/x.json"), "does not exist"),
        (("--device", "cuda", "--step-ms", "1"), "and --step-ms emulates one"),
        (("--device", "cuda", "--algorithms", "ddp"), "leave out ddp, or --device"),
    ],
)
def test_impossible_options_are_refused_at_the_start(
    options, message, capsys, world_of_one
):
    assert main(["train", *SHORT, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scaling", "1,a"), "must be like 1,2,4,8, got 1,a"),
        (("--step-ms", "0"), "must be a number above 0, got '0'"),
        (("--step-ms", "inf"), "must be a number above 0, got 'inf'"),
        (("--steps", "0"), "must be a whole number of at least 1, got '0'"),
        (("--warmup", "-1"), "must be a whole number of at least 0, got '-1'"),
        (("--layers", "20"), "layers must be like 20x1M, got '20'"),
        (("--slow-rank=-1:10",), "must be like 0:10, got -1:10"),
        (("--overhead", "--scaling", "1"), "not allowed with argument --overhead"),
        (("--algorithms", "sgd"), "algorithm must be one of"),
    ],
)
def test_wrong_arguments(options, message, capsys):
    with pytest.raises(SystemExit):
        main(["train", *options])
    assert message in capsys.readouterr().err
