"""``compare`` without ranks: its tasks, lines of results, and refused options."""

from __future__ import annotations

import pytest
import torch

from bluecomm.bench.__main__ import main
from bluecomm.bench.comparison.results import Comparison, Curve, StepCost
from bluecomm.bench.comparison.summary import links_of, sections_of, target_of
from bluecomm.bench.comparison.tasks import TASKS, layers_of, loss_of


def curve(name, losses, link="", seed=0, step_ms=1.0):
    steps = range(10, 10 * len(losses) + 1, 10)
    return Curve("digits", name, seed, link, list(steps), losses, losses, step_ms, 8.0)


@pytest.mark.parametrize("name", TASKS)
def test_samples_and_models_fit_together(name):
    torch.manual_seed(0)
    data = TASKS[name].load()
    model = TASKS[name].make_model(data.classes)
    loss = loss_of(model(data.inputs[:4]), data.targets[:4])
    uniform = torch.tensor(float(data.classes)).log()
    assert abs(loss - uniform) < 0.5
    shapes = [shape for layer in layers_of(model) for shape in layer.shapes()]
    assert sorted(shapes) == sorted(one.shape for one in model.parameters())
    assert len(data.test_inputs) == len(data.test_targets) > 300


def test_no_sample_of_the_text_is_in_both_sets():
    data = TASKS["characters"].load()
    assert torch.equal(data.inputs[1:, 0], data.targets[:-1, -1])
    assert torch.equal(data.test_inputs[0, 0], data.targets[-1, -1])


def test_a_model_cannot_look_ahead():
    data = TASKS["characters"].load()
    model = TASKS["characters"].make_model(data.classes).eval()
    text = data.inputs[:2].clone()
    before = model(text)
    text[:, -1] = (text[:, -1] + 1) % data.classes
    after = model(text)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def test_times_follow_from_steps_and_the_link():
    found = Comparison(
        [],
        [
            curve("gradient_allreduce", [2.0, 1.0, 0.5]),
            curve("local_sgd", [3.0, 0.75, 0.25]),
            curve("local_sgd", [1.0, 0.25, 0.25], seed=1),
            curve("push_sum", [2.0, 1.0, 1.0], link="slow", step_ms=4.0),
            curve("push_sum", [2.0, 0.4, 0.4], link="fast", step_ms=2.0),
        ],
        [
            StepCost("digits", "gradient_allreduce", "slow", 100.0, 8.0),
            StepCost("digits", "local_sgd", "slow", 10.0, 4.0),
        ],
    )
    assert links_of(found) == ["slow", "fast"]
    (section,) = sections_of(found)
    assert section.title == "Digits, 30 steps"
    local, reference, push = lines = section.lines
    assert local.losses[""] == [2.0, 0.5, 0.25]
    target = target_of(lines)
    assert target == pytest.approx(0.51)
    assert reference.seconds_to(target, "slow") == pytest.approx(3.0)
    assert local.seconds_to(target, "slow") == pytest.approx(0.2)
    assert local.seconds_to(target, "fast") is None
    assert push.seconds_to(target, "slow") is None
    assert push.seconds_to(target, "fast") == pytest.approx(0.04)
    assert push.final_loss == pytest.approx(0.7)


def test_trainings_of_other_lengths_have_sections_of_their_own():
    steps = TASKS["digits"].steps
    found = Comparison(
        [],
        [
            curve("gradient_allreduce:lr_factor=2", [2.0] * (steps // 5)),
            curve("gradient_allreduce:lr_factor=3", [3.0] * (steps // 5)),
            curve("gradient_allreduce", [1.0] * (steps // 10)),
            curve("gradient_allreduce:lr_factor=2", [0.5] * (steps // 10)),
        ],
        [
            StepCost("digits", "gradient_allreduce", "slow", 100.0, 8.0),
            StepCost("digits", "gradient_allreduce:lr_factor=3", "fast", 40.0, 8.0),
        ],
    )
    usual, longer = sections_of(found)
    assert (usual.title, usual.name) == ("Digits", "digits")
    assert (longer.title, longer.name) == ("Digits, 480 steps", "digits-480")
    assert [line.final_loss for line in longer.lines] == [2.0, 3.0]
    # A rate does not change the time of a step.
    times = {"slow": 100.0, "fast": 40.0}
    assert all(line.step_ms == times for line in usual.lines)
    # The rate of the task counts, or the best of others.
    assert target_of(usual.lines) == pytest.approx(1.02)
    assert target_of(longer.lines) == pytest.approx(2.04)
    assert target_of([]) is None


def test_results_can_be_read_again(tmp_path):
    found = Comparison([{"ranks": 2}], [curve("local", [1.0])], [])
    found.write(tmp_path / "one.json")
    assert Comparison.read(tmp_path / "one.json") == found
    both = Comparison.joined([found, found])
    assert len(both.about) == len(both.curves) == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--combine", "missing.json", "--page", "x.md"], "missing.json"),
        (["--combine", "missing.json"], "needs --page FILE or --json FILE"),
        (["--combine", "missing.json", "--page", "no/x.md"], "no does not exist"),
    ],
)
def test_combining_refuses(options, text, capsys):
    assert main(["compare", *options]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--share", "0"], "must be a number above 0"),
        (["--algorithms", "gradient_alreduce"], "did you mean"),
    ],
)
def test_bad_options(options, text, capsys):
    with pytest.raises(SystemExit):
        main(["compare", *options])
    assert text in capsys.readouterr().err
