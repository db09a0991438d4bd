import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfrun.channel import (
    MessageParser,
    SendQueue,
    bytes_to_text,
    encode,
    parse,
    text_to_bytes,
)
from bfrun.errors import ProtocolError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
frames = st.builds(
    lambda fields, kind: {**fields, "type": kind},
    st.dictionaries(st.text(), values),
    st.text(),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(frames, max_size=5), st.lists(st.integers(1, 50)))
def test_frames_survive_any_split(sent, cuts):
    data = b"".join(encode(frame) for frame in sent)
    parser, got, start = MessageParser(), [], 0
    for cut in [*cuts, len(data) + 1]:
        got += parser.feed(data[start : start + cut])
        start += cut
    assert got == sent


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waits_for_more(data):
    parser = MessageParser(max_nbytes=100)
    try:
        frames = parser.feed(data)
    except ProtocolError:
        return
    assert all(isinstance(frame["type"], str) for frame in frames)


def test_a_length_over_the_limit_is_refused_before_its_bytes_come():
    with pytest.raises(
        ProtocolError, match="a frame of 4294967295 bytes was announced"
    ):
        MessageParser().feed(b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    "body", [b"[1]", b'{"a": 1}', b'{"type": 1}', b"\xff", b"{", b"[" * 100_000]
)
def test_bodies_that_are_no_frames(body):
    with pytest.raises(ProtocolError, match="frame is not"):
        parse(body)


def test_a_frame_that_is_too_large_is_not_sent():
    with pytest.raises(ProtocolError, match="frame 'x' has"):
        encode({"type": "x", "data": "y" * (17 << 20)})


@given(st.binary())
def test_any_bytes_travel_as_text(data):
    text = json.loads(json.dumps(bytes_to_text(data)))
    assert text_to_bytes(text) == data


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_control_frames_pass_bulk_frames_but_cut_none(step):
    queue = SendQueue()
    for n in (1, 2):
        queue.put_bulk({"type": "output", "n": n})
    first = bytes(queue.peek()[:3])
    queue.advance(3)
    queue.put({"type": "lost", "n": 3})
    rest = b""
    while queue:
        piece = bytes(queue.peek()[:step])
        queue.advance(len(piece))
        rest += piece
    order = [frame["n"] for frame in MessageParser().feed(first + rest)]
    assert order == [1, 3, 2]
    assert bytes(queue.peek()) == b""
