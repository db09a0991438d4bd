import errno
import io
import os
import re
import stat
from pathlib import Path

import pytest

from bfrun import files
from bfrun.output.logs import LogFiles
from bfrun.output.printer import TAIL_LINES, Printer
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.stand_in import replace_in


class Sink:
    def __init__(self, **options):
        self.out, self.err, self.shown = io.StringIO(), io.StringIO(), []
        self.printer = Printer(
            lambda rank, nbytes: self.shown.append((rank, nbytes)),
            out=self.out,
            err=self.err,
            **options,
        )

    def finish(self, *items):
        for item in items:
            self.printer.feed(*item)
        self.printer.close()
        return self.out.getvalue(), self.err.getvalue()


def test_whole_lines_with_prefixes():
    sink = Sink()
    out, err = sink.finish(
        (0, "stdout", b"on"),
        (1, "stdout", b"two\n"),
        (0, "stdout", b"e\n"),
        (1, "stderr", b"no end"),
    )
    assert out == "[1] two\n[0] one\n"
    assert err == "[1] no end\n"
    assert sum(nbytes for _, nbytes in sink.shown) == 14


def test_remarks_have_no_prefix():
    sink = Sink()
    sink.printer.say("one\ntwo")
    assert sink.finish() == ("", "one\ntwo\n")


def test_a_remark_to_ranks_is_in_their_logs(tmp_path):
    sink = Sink(logs=LogFiles(str(tmp_path), [0, 1, 2]), only=[0, 1])
    sink.printer.say("the end", [0, 1, 2])
    assert sink.finish() == ("", "[0-1] the end\n")
    log = tmp_path / "latest" / "rank2.stderr"
    assert log.read_text() == "the end\n"
    assert sink.shown == []


def test_only_some_ranks_are_shown_and_all_are_remembered(tmp_path):
    logs = LogFiles(str(tmp_path / "logs"), [0, 1])
    sink = Sink(only=[1], logs=logs)
    out, _ = sink.finish(
        (0, "stdout", b"x\n"), (1, "stdout", b"y\n"), (0, "stderr", b"z\n")
    )
    assert out == "[1] y\n"
    assert sink.printer.tails() == {0: ["z"]}
    assert Path(logs.folder, "rank0.stdout").read_bytes() == b"x\n"
    assert logs.stderr_paths()[0] == f"{logs.folder}/rank0.stderr"


def test_timestamps():
    out, _ = Sink(timestamps=True).finish((0, "stdout", b"x\n"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] x\n", out)


def test_the_tail_is_the_last_lines():
    sink = Sink()
    sink.finish((0, "stderr", b"".join(b"%d\n" % i for i in range(30))))
    assert sink.printer.tails()[0] == [str(i) for i in range(30 - TAIL_LINES, 30)]


def test_equal_tracebacks_are_folded(monkeypatch):
    monkeypatch.setattr("bfrun.output.printer._HOLD_S", DEADLINE_S)
    trace = b"Traceback (most recent call last):\n  File\nValueError: x\n"
    _, err = Sink().finish(*((rank, "stderr", trace) for rank in (0, 1, 2)))
    assert err.count("Traceback") == 1
    assert err.endswith("[1-2] same traceback as rank 0: ValueError: x\n")


def test_a_traceback_that_nothing_follows_is_shown_soon():
    sink = Sink()
    trace = b"Traceback (most recent call last):\n  File\nValueError: x\n"
    sink.printer.feed(0, "stderr", trace)
    wait_until(lambda: "ValueError" in sink.err.getvalue(), "nothing is shown")
    assert "[0] ValueError: x\n" in sink.err.getvalue()
    sink.finish()


def test_a_bar_becomes_a_line_in_a_log():
    sink = Sink()
    sink.printer.feed(0, "stderr", b"\r10%")
    wait_until(lambda: "10%" in sink.err.getvalue(), "nothing is shown")
    _, err = sink.finish((0, "stderr", b"\r90%"), (0, "stderr", b"\r100%\n"))
    assert err == "[0] 10%\n[0] 100%\n"


def fail(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_logs_that_cannot_be_written_are_told_once(tmp_path, monkeypatch):
    logs = LogFiles(str(tmp_path / "logs"), [0, 1])
    monkeypatch.setattr("bfrun.output.logs.write_all", fail)
    sink = Sink(logs=logs)
    items = [(rank, "stderr", b"x\n") for rank in (0, 1, 0, 1)]
    _, err = sink.finish((0, "stdout", b""), *items)
    warning, *lines = err.splitlines()
    assert (
        "rank0.stderr' cannot be written: No space left on device; it ends" in warning
    )
    assert lines == ["[0] x", "[1] x", "[0] x", "[1] x"]
    assert logs.stderr_paths() == {}
    assert sum(nbytes for _, nbytes in sink.shown) == 8


def test_a_write_of_a_part_is_continued(tmp_path, monkeypatch):
    replace_in(monkeypatch, files, "os", write=lambda fd, data: os.write(fd, data[:3]))
    logs = LogFiles(str(tmp_path / "logs"), [0])
    Sink(logs=logs).finish((0, "stdout", b"0123456789"))
    assert Path(logs.folder, "rank0.stdout").read_bytes() == b"0123456789"


def test_a_rank_that_starts_later_gets_files_when_it_prints(tmp_path):
    logs = LogFiles(str(tmp_path / "logs"), [0])
    Sink(logs=logs).finish((3, "stderr", b"hello\n"))
    assert Path(logs.folder, "rank3.stderr").read_bytes() == b"hello\n"
    assert set(logs.stderr_paths()) == {0, 3}


def test_a_defect_of_the_printer_blocks_no_rank(monkeypatch, capsys):
    sink = Sink()
    monkeypatch.setattr(sink.printer, "_show", lambda *item: 1 // 0)
    sink.finish((0, "stdout", b"x\n"))
    assert sink.shown == [(0, 2)]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_each_run_has_a_private_folder(tmp_path):
    folders = []
    for text in (b"first", b"second"):
        logs = LogFiles(str(tmp_path / "logs"), [*range(11)])
        logs.write(3, "stdout", text)
        logs.close()
        folders.append(Path(logs.folder))
        assert (tmp_path / "logs" / "latest").resolve() == Path(logs.folder)
    names = [f"rank{rank:02}.{it}" for rank in range(11) for it in ("stderr", "stdout")]
    for folder, text in zip(folders, (b"first", b"second"), strict=True):
        assert sorted(each.name for each in folder.iterdir()) == names
        assert (folder / "rank03.stdout").read_bytes() == text
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {
            0o600
        }


def test_an_output_folder_that_cannot_be_made(tmp_path):
    from bfrun.errors import LaunchError

    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="--output-dir"):
        LogFiles(str(tmp_path / "file" / "logs"), [0])
