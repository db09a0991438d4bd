"""The ring in which an agent keeps output for the next driver."""

from bfrun.agent.output_ring import OutputRing


def rest_of(ring):
    """Take everything that waits."""
    pieces = []
    while (piece := ring.take()) is not None:
        pieces.append(piece)
    return pieces


def test_output_waits_in_order():
    ring = OutputRing()
    assert not ring
    ring.keep("stdout", b"a")
    ring.keep("stdout", b"b\n")
    ring.keep("stderr", b"c\n")
    assert ring
    assert rest_of(ring) == [("stdout", b"ab\n"), ("stderr", b"c\n")]
    assert not ring


def test_output_that_was_not_shown_is_sent_again():
    ring = OutputRing()
    ring.sent("stdout", b"one\n")
    ring.sent("stdout", b"two\n")
    ring.acknowledge(4)
    ring.rewind()
    ring.keep("stdout", b"three\n")
    assert b"".join(data for _, data in rest_of(ring)) == b"two\nthree\n"
    ring.rewind()  # the next driver has shown nothing
    assert b"".join(data for _, data in rest_of(ring)) == b"two\nthree\n"


def test_the_shown_part_of_an_unfinished_line_is_sent_again():
    ring = OutputRing()
    ring.sent("stdout", b"one\nha")
    ring.sent("stderr", b"error\n")
    ring.sent("stdout", b"lf a")
    ring.acknowledge(4 + 2 + 6 + 2)
    ring.rewind()
    ring.keep("stdout", b" line\n")
    assert rest_of(ring) == [("stdout", b"half"), ("stdout", b" a line\n")]


def test_a_finished_line_is_not_sent_again():
    ring = OutputRing()
    for data in (b"half", b" a line\n"):
        ring.sent("stdout", data)
        ring.acknowledge(len(data))
    ring.rewind()
    assert not ring


def test_the_oldest_output_is_lost():
    ring = OutputRing(limit_nbytes=5)
    ring.keep("stdout", b"abc")
    ring.keep("stderr", b"defg")
    assert (ring.take_lost(), ring.take_lost()) == (2, 0)
    ring.keep("stdout", b"h")
    assert ring.take_lost() == 1
    assert rest_of(ring) == [("stderr", b"defg"), ("stdout", b"h")]


def test_the_limit_holds_for_output_that_is_sent_again():
    ring = OutputRing(limit_nbytes=2)
    ring.sent("stdout", b"abc\n")
    ring.rewind()
    assert ring.take_lost() == 2
    assert rest_of(ring) == [("stdout", b"c\n")]


def test_nothing_waits_after_clear():
    ring = OutputRing(limit_nbytes=2)
    ring.keep("stdout", b"ab")
    ring.clear()
    ring.keep("stdout", b"cd")
    assert ring.take_lost() == 0
    assert rest_of(ring) == [("stdout", b"cd")]
