import io

from bfrun.output.terminal import Terminal


class Screen(io.StringIO):
    def isatty(self):
        return True


class Closed(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


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


def test_characters_that_the_stream_cannot_write():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    terminal = Terminal(out, io.StringIO())
    terminal.write_line("stdout", "é")
    terminal.flush()
    assert raw.getvalue() == b"?\n"
