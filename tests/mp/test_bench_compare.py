"""``python -m bluecomm.bench compare``: short trainings, times, and the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bluecomm.bench.__main__ import main
from bluecomm.bench.comparison.results import Comparison
from tests.support.launch import run_bfrun

pytestmark = pytest.mark.mp

BENCH = (sys.executable, "-m", "bluecomm.bench", "compare")
NAMES = ("gradient_allreduce", "qadam", "decentlam", "diloco:every=2", "push_sum")


def test_each_algorithm_has_a_line_on_the_page(tmp_path: Path) -> None:
    trained, timed = tmp_path / "trained.json", tmp_path / "timed.json"
    page = tmp_path / "results.md"
    # One job for both runs, since most of its time goes into its start.
    common = [
        "--tasks",
        "digits",
        "--share",
        "0.1",
        "--seconds",
        "0.1",
        "--step-ms",
        "1",
    ]
    common += ["--algorithms", *NAMES]
    script = tmp_path / "both.py"
    script.write_text(
        "import sys\n"
        "from bluecomm.bench.__main__ import main\n"
        f"common = {['compare', *common]!r}\n"
        f"code = main([*common, '--json', {str(trained)!r}])\n"
        f"link = ['--link', 'shm', '--json', {str(timed)!r}]\n"
        "sys.exit(code or main([*common, *link]))\n"
    )
    job = run_bfrun(tmp_path, "-np", "2", sys.executable, str(script))
    assert job.process.returncode == 0, job.err
    curves = Comparison.read(trained).curves
    # The result of push_sum depends on the network, so it is trained there.
    assert [curve.contender for curve in curves] == list(NAMES[:-1])
    for curve in curves:
        assert curve.losses[-1] < curve.losses[0] < 2.5, curve
        assert curve.steps[-1] == 24
    on_link = Comparison.read(timed)
    assert [cost.contender for cost in on_link.costs] == list(NAMES[:-1])
    assert [(one.contender, one.link) for one in on_link.curves] == [
        ("push_sum", "shm")
    ]
    # Two ranks send each other half of the gradients, twice; float32.
    parameters = 38_170
    for one in (curves[0], on_link.costs[0]):
        assert 4 * parameters < one.sent_per_step < 4.1 * parameters
    combine = ["compare", "--combine", str(trained), str(timed), "--page", str(page)]
    assert main(combine) == 0
    text = page.read_text()
    for name in NAMES:
        assert text.count(f"| `{name}` |") == 1
    assert "ms/step, shm" in text
    assert "steps timed for at least 0.1 s" in text
    picture = tmp_path / "images" / "results-digits-24.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
