from hypothesis import given
from hypothesis import strategies as st

from bfrun.output.lines import BAR_LINE_EVERY_S, MAX_LINE_CHARS, LineCutter


def cut(*pieces):
    cutter = LineCutter()
    lines = []
    for piece in pieces:
        lines += cutter.feed(piece)
    return lines, cutter


@given(st.text(alphabet="ab\né\r"), st.lists(st.integers(1, 4)))
def test_lines_do_not_depend_on_how_the_bytes_come(text, cuts):
    data = text.encode()
    whole, cutter = cut(data)
    whole += cutter.finish()
    pieces, start = [], 0
    for size in [*cuts, len(data) + 1]:
        pieces.append(data[start : start + size])
        start += size
    split, cutter = cut(*pieces)
    assert split + cutter.finish() == whole


def test_lines_and_a_rest():
    lines, cutter = cut(b"one\ntw", b"o\n\nthree")
    assert lines == ["one", "two", ""]
    assert cutter.partial == "three"
    assert cutter.finish() == ["three"]
    assert cutter.finish() == []


def test_windows_line_ends_are_line_ends():
    assert cut(b"one\r", b"\ntwo\r\n")[0] == ["one", "two"]


def test_the_last_state_of_a_progress_bar_becomes_a_line():
    lines, cutter = cut(b"\r 10%", b"\r 20%")
    assert lines == []
    assert cutter.bar == " 20%"
    assert cutter.partial == ""
    assert cutter.feed(b"\r100%\n") == ["100%"]
    assert cutter.bar == ""


def test_bars_that_end_with_the_carriage_return():
    _, cutter = cut(b"10%\r", b"20%\r")
    assert cutter.bar == "20%"


def test_a_bar_is_due_now_and_then():
    now = [100.0]
    cutter = LineCutter(lambda: now[0])
    assert cutter.due_bar() == ""
    cutter.feed(b"\r10%")
    assert cutter.due_bar() == "10%"
    assert cutter.due_bar() == ""
    now[0] += BAR_LINE_EVERY_S
    assert cutter.due_bar() == "10%"


def test_invalid_and_split_characters():
    assert cut(b"\xc3", b"\xa9\xff\n")[0] == ["é\ufffd"]


def test_a_line_without_end_is_cut():
    lines, cutter = cut(b"x" * (MAX_LINE_CHARS + 1))
    assert [len(line) for line in lines] == [MAX_LINE_CHARS + 1]
    assert cutter.finish() == []
