import errno
import io

from bfrun.output.terminal import Terminal


class Screen(io.StringIO):
    def isatty(self):
        return True


class Closed(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_lines_go_to_their_streams():
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err)
    assert not terminal.has_live_line
    terminal.write_line("stdout", "one")
    terminal.write_line("stderr", "two")
    terminal.show_live("never seen")
    terminal.flush()
    assert (out.getvalue(), err.getvalue()) == ("one\n", "two\n")


def test_the_live_line_stays_below(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    terminal = Terminal(screen, screen)
    assert terminal.has_live_line
    terminal.show_live("10%")
    terminal.show_live("10%")
    terminal.write_line("stdout", "one")
    terminal.show_live("")
    erase = "\r\x1b[K"
    assert screen.getvalue() == f"{erase}10%{erase}one\n{erase}10%{erase}"


def test_a_live_line_is_cut_at_the_edge(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "10")
    screen = Screen()
    Terminal(screen, screen).show_live("0123456789abc")
    assert screen.getvalue().endswith("K012345678")


def test_a_closed_stream_is_noticed_once_and_for_all():
    terminal = Terminal(Closed(), io.StringIO())
    terminal.write_line("stdout", "x")
    assert terminal.broken
    terminal.write_line("stderr", "x")
    terminal.flush()


class HungUp(io.StringIO):
    def write(self, text):
        raise OSError(errno.EIO, "Input/output error")


def test_a_closed_terminal_is_told_from_a_closed_pipe():
    for stream, is_terminal in ((HungUp(), True), (Closed(), False)):
        terminal = Terminal(stream, io.StringIO())
        terminal.write_line("stdout", "x")
        assert terminal.broken
        assert terminal.closed == is_terminal


class Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_stream_that_cannot_be_written_is_told_once_on_the_other():
    out, err = Full(), io.StringIO()
    terminal = Terminal(out, err)
    for _ in range(2):
        terminal.write_line("stdout", "x")
    terminal.write_line("stderr", "y")
    assert not terminal.broken
    warning, last = err.getvalue().splitlines()
    assert warning == (
        "bfrun: warning: stdout cannot be written: No space left on device; bfrun "
        "drops the rest of it, and the job goes on"
    )
    assert last == "y"


def test_two_streams_that_cannot_be_written():
    terminal = Terminal(Full(), Full())
    terminal.write_line("stdout", "x")
    terminal.write_line("stderr", "x")
    assert not terminal.broken


def test_a_stream_that_does_not_exist():
    terminal = Terminal(None, None)
    terminal.write_line("stdout", "x")
    terminal.flush()
    assert not terminal.broken


def test_characters_that_the_stream_cannot_write():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    terminal = Terminal(out, io.StringIO())
    terminal.write_line("stdout", "é")
    terminal.flush()
    assert raw.getvalue() == b"?\n"
