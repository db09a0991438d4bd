"""``python -m bluecomm.timeline``: table, picture, and traces of killed ranks."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from bfrun.trace import spool
from bfrun.trace.clock import ClockEstimate
from bfrun.trace.merge import Source, merge_file
from bluecomm.timeline.__main__ import main
from bluecomm.timeline.plot import plot
from bluecomm.timeline.reading import read_timeline
from tests.support.traces import TraceWriter

MS = 1_000_000


def write_traces(folder: Path) -> list[Path]:
    """Write traces of two ranks; rank 1 is late."""
    paths = []
    for rank, called in enumerate((10 * MS, 40 * MS)):
        writer = TraceWriter(rank=rank, pid=100 + rank)
        writer.add(spool.BEGIN, MS, name="FORWARD")
        writer.add(spool.END, 9 * MS, name="FORWARD")
        writer.call(1, called, 50 * MS, name="w", edges={1 - rank: (10**6, 10**6)})
        writer.add(spool.BLOCKED, called, 50 * MS, operation=1)
        writer.add(spool.COMBINE, 49 * MS, 50 * MS, operation=1)
        if rank == 0:
            writer.add(spool.LATE, called, 40 * MS, operation=1, peer=1)
        paths.append(folder / f"t{rank}.trace")
        paths[-1].write_bytes(writer.file())
    return paths


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    """Return the file of a timeline."""
    packed = [spool.pack(path.read_bytes()) for path in write_traces(tmp_path)]
    sources = [
        Source("x", lambda n, data=data: data[:n], "hostA", ClockEstimate())  # type: ignore[misc]
        for data in packed
    ]
    merge_file(sources, tmp_path / "t.json")
    return tmp_path / "t.json"


def test_the_table(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(timeline)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "0 hostA 1.0 50.0 0.008 0.000 0.000 0.040 rank 1 (0.030 s) -",
        "1 hostA 1.0 50.0 0.008 0.000 0.000 0.010 - 1 time",
        "rank 1 held up the others most: it was the last to call 1 operation, on "
        "average 30.0 ms after the first",
        "2.0 MB over 2 edges",
    ]


def test_the_picture(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = timeline.with_suffix(".png")
    assert main([str(timeline), "--plot", str(picture), "--begin", "5"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"wrote the picture {picture}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("begin", "end"), [("60", "90"), ("200", None), ("-9", "-1"), ("20", "10")]
)
def test_an_empty_picture_is_refused(
    timeline: Path, capsys: pytest.CaptureFixture[str], begin: str, end: str | None
) -> None:
    picture = timeline.with_suffix(".png")
    arguments = [str(timeline), f"--plot={picture}", f"--begin={begin}"]
    assert main([*arguments, *([] if end is None else [f"--end={end}"])]) == 1
    assert "the timeline has events from 1.0 to 50.0 ms" in capsys.readouterr().err
    assert not picture.exists()


def test_a_picture_needs_matplotlib(
    timeline: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([str(timeline), "--plot", "x.png"]) == 1
    assert "error: import of matplotlib.figure halted" in capsys.readouterr().err


def test_several_timelines_are_refused(
    timeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(timeline), str(timeline)])
    assert "several files are accepted only with --merge" in capsys.readouterr().err


def test_a_wait_has_the_colour_of_the_late_rank(timeline: Path) -> None:
    out = io.BytesIO()
    plot(read_timeline(timeline), out, end_ms=60)  # type: ignore[arg-type]
    from matplotlib import image

    out.seek(0)
    pixels = image.imread(out)[:, :, :3].reshape(-1, 3)
    colour = [int("756bb1"[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    assert (abs(pixels - colour).max(axis=1) < 0.02).sum() > 5000


def test_traces_of_killed_ranks_are_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(path) for path in write_traces(tmp_path)]
    assert main([*paths, "--merge", str(tmp_path / "out.json")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    (tmp_path / "bad").write_bytes(b"no")
    arguments = [str(tmp_path / "bad"), "--merge", str(tmp_path / "o.json")]
    assert main(arguments) == 1
    assert "too short" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"traceEvents": []}', "{"])
def test_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "t.json").write_text(text)
    assert main([str(tmp_path / "t.json")]) == 1
    assert "is not a timeline that bfrun --timeline-filename wrote" in (
        capsys.readouterr().err
    )
