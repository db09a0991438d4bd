"""Results of ``ops``: JSON, table, plots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bluecomm.bench.plot import BANDWIDTH, TIME, draw
from bluecomm.bench.results import Measurement, Results, load, spread
from bluecomm.bench.table import number, print_table, ratios


def measurement(
    library: str, us: float, operation: str = "allreduce_", nbytes: int = 1 << 20
) -> Measurement:
    return Measurement(
        operation,
        library,
        "float32",
        nbytes,
        rounds=5,
        median_us=us,
        min_us=0.5 * us,
        q1_us=0.8 * us,
        q3_us=1.25 * us,
        max_us=4 * us,
        bus_gb_per_s=nbytes / us / 1e3,
    )


def results() -> Results:
    measured = [
        measurement(library, factor * (10 + nbytes / 1e3), operation, nbytes)
        for operation in ("allreduce_", "one_peer", "broadcast_", "alltoall")
        for nbytes in (64 << 10, 4, 1 << 20)
        for library, factor in (("gloo", 8), ("limit", 1), ("bluecomm, shared", 2))
        if (operation, library) != ("alltoall", "limit")
    ]
    about = {"cores": 2, "libraries": {"gloo": "torch 2.13.0"}}
    return Results([0, 0], about, measured, ["mpi left out: it is not here"])


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "ops.json"
    results().save(path)
    assert load(path) == results()
    content = json.loads(path.read_text())
    assert content["format"] == "bluecomm.bench.ops/1"
    assert content["measurements"][0] == {
        "operation": "allreduce_",
        "library": "gloo",
        "dtype": "float32",
        "nbytes": 64 << 10,
        "rounds": 5,
        **spread_of(8 * (10 + 65.536)),
        "bus_gb_per_s": pytest.approx(65.536 / (8 * (10 + 65.536))),
    }


def spread_of(us: float) -> dict[str, float]:
    return {
        "median_us": us,
        "min_us": 0.5 * us,
        "q1_us": 0.8 * us,
        "q3_us": 1.25 * us,
        "max_us": 4 * us,
    }


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "bluecomm.bench.ops/0"}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="expected results of format"):
        load(path)


@pytest.mark.parametrize(
    ("times", "q1", "median", "q3"),
    [([7.0], 7, 7, 7), ([1.0, 9.0], 3, 5, 7), ([5.0, 1.0, 2.0, 3.0, 4.0], 2, 3, 4)],
)
def test_spread(times: list[float], q1: float, median: float, q3: float) -> None:
    assert spread(times) == {
        "median_us": median,
        "min_us": min(times),
        "q1_us": q1,
        "q3_us": q3,
        "max_us": max(times),
    }


def test_ratios_say_how_many_times_faster() -> None:
    own, gloo = measurement("bluecomm", 10), measurement("gloo", 50)
    limit = measurement("limit", 5)
    peers = {m.library: m for m in (own, gloo, limit)}
    assert ratios(own, peers) == ["5.00", "", "0.50"]
    assert ratios(gloo, peers) == ["", "", "0.10"]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(results())
    shown = capsys.readouterr().out
    assert "one blocking call on 2 ranks on 1 machine, 2 cores; slowest rank" in shown
    row = next(line for line in shown.splitlines() if "bluecomm, shared" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    # 2 * (10 + 65.536) us; 4 times faster than gloo, half as fast as the limit.
    assert cells[2:] == [
        *("bluecomm, shared", "151", "121 - 189", "75.5", "0.43", "4.00", "", "0.50")
    ]
    assert "gloo: torch 2.13.0" in shown
    assert "note: mpi left out: it is not here" in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.50"), (12.34, "12.3"), (99.96, "100"), (123456.7, "123,457")],
)
def test_number_format(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("quantity", [TIME, BANDWIDTH])
def test_a_panel_per_operation_and_a_line_per_peer(quantity: object) -> None:
    figure = draw(results(), quantity)  # type: ignore[arg-type]
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        "allreduce, in place",
        "neighbor_allreduce, one peer",
        "broadcast, in place",
        "alltoall",
    ]
    assert [len(axes.lines) for axes in figure.axes] == [3, 3, 3, 2]
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        for line in axes.lines:
            assert list(line.get_xdata()) == [4, 64 << 10, 1 << 20]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "limit",
        "gloo (torch 2.13.0)",
        "bluecomm, shared",
    ]


def test_lines_show_the_medians() -> None:
    line = draw(results(), TIME).axes[0].lines[-1]
    assert list(line.get_ydata()) == pytest.approx(
        [2 * (10 + nbytes / 1e3) for nbytes in (4, 64 << 10, 1 << 20)]
    )


def test_a_plot_is_a_png_file(tmp_path: Path) -> None:
    import matplotlib.image

    path = tmp_path / "ops.png"
    draw(results(), TIME).savefig(path)
    height, width, _ = matplotlib.image.imread(path).shape
    assert height > 500
    assert width > 1000


def test_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="no measurements to draw"):
        draw(Results([0, 0], {}, [], []), TIME)
