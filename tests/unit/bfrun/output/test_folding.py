from bfrun.output.folding import TracebackFolder

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in f',
    "    f()",
    "ValueError: no luck on rank {rank}",
]


def feed(folder, rank, lines):
    return [out for line in lines for out in folder.line(rank, line.format(rank=rank))]


def test_other_lines_pass():
    assert feed(TracebackFolder(), 0, ["one", "  two"]) == ["one", "  two"]


def test_equal_tracebacks_are_shown_once():
    folder = TracebackFolder()
    assert feed(folder, 2, TRACEBACK) == []
    assert folder.holding() == [2]
    assert folder.flush(2)[-1] == "ValueError: no luck on rank 2"
    for rank in (0, 3):
        feed(folder, rank, TRACEBACK)
        assert folder.flush(rank) == []
    remark = "same traceback as rank 2: ValueError: no luck on rank 2"
    assert folder.take_repeats() == [([0, 3], remark)]
    assert folder.take_repeats() == []


def test_different_tracebacks_are_all_shown():
    folder = TracebackFolder()
    feed(folder, 0, TRACEBACK)
    feed(folder, 1, [*TRACEBACK[:-1], "ValueError: other"])
    assert len(folder.flush(0)) == 4
    assert len(folder.flush(1)) == 4


def test_the_next_line_ends_a_traceback():
    folder = TracebackFolder()
    assert feed(folder, 0, TRACEBACK) == []
    assert len(folder.line(0, "and on")) == 5
    assert folder.holding() == []


def test_chained_exceptions_are_one_traceback():
    folder = TracebackFolder()
    between = "During handling of the above exception, another exception occurred:"
    chain = [*TRACEBACK, "", between, "", *TRACEBACK]
    assert feed(folder, 0, chain) == []
    assert len(folder.flush(0)) == 11


def test_the_same_rank_may_fail_twice():
    folder = TracebackFolder()
    feed(folder, 0, TRACEBACK)
    folder.flush(0)
    feed(folder, 0, TRACEBACK)
    assert folder.flush(0) == []
    assert folder.take_repeats()[0][0] == [0]


def test_without_held_lines_flush_returns_nothing():
    assert TracebackFolder().flush(3) == []
