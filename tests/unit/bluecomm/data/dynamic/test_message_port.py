"""Messages whose chunks are lost on the way."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from bluecomm.data.dynamic import message_port
from bluecomm.data.dynamic.message_port import MessagePort
from bluecomm.errors import SuspendedError

# Three chunks each.
FIRST, SECOND = (bytes([byte]) * 2_500 for byte in (1, 2))


class Wire:
    """Delivers chunks to a receiving port in the order of their sends."""

    def __init__(self, monkeypatch):
        self.received = []
        self.may_start = math.inf
        self.lost = set()
        self.sent = 0
        self.receiver = MessagePort(None, self._on_message, None, None)
        self.sender = MessagePort(None, None, None, None)
        monkeypatch.setattr(message_port, "send_nonblocking", self._send)

    def send(self, *messages):
        for message in messages:
            self.sender.send(1, message)

    def _on_message(self, rank, message):
        assert rank == 0
        self.received.append(message)

    def _send(self, tensor, rank, tag, comm):
        self.sent += 1
        if self.sent == self.may_start:
            raise SuspendedError("the world is suspended")
        if self.sent not in self.lost:
            self.receiver._chunk.copy_(tensor)
            self.receiver._take(0)
        return SimpleNamespace(on_finish=lambda callback: None)


def test_messages_of_any_length_arrive(monkeypatch):
    wire = Wire(monkeypatch)
    body = message_port._BODY_NBYTES
    messages = [FIRST, b"short", SECOND, FIRST[:body], FIRST[: body + 1]]
    wire.send(*messages)
    assert wire.received == messages


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_a_message_that_was_broken_off_does_not_reach_into_the_next_one(
    monkeypatch, chunk
):
    wire = Wire(monkeypatch)
    wire.may_start = chunk
    wire.send(FIRST, SECOND, b"short")
    assert wire.received == [SECOND, b"short"]


@pytest.mark.parametrize("lost", [{1}, {2}, {3}, {3, 4}, {2, 3, 4}])
def test_a_message_without_one_of_its_chunks_is_lost(monkeypatch, lost):
    wire = Wire(monkeypatch)
    wire.lost = lost
    wire.send(FIRST, SECOND, b"short")
    assert wire.received == ([b"short"] if 4 in lost else [SECOND, b"short"])
