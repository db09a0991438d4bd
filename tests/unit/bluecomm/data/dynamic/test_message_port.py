"""Messages whose chunks are lost on the way."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from bluecomm.data.dynamic import message_port
from bluecomm.data.dynamic.message_port import MessagePort
from bluecomm.errors import SuspendedError
from bluecomm.ops import standing_receive

# Three chunks each.
FIRST, SECOND = (bytes([byte]) * 2_500 for byte in (1, 2))


class Wire:
    """Delivers chunks to a receiving port in the order of their sends."""

    def __init__(self, monkeypatch):
        self.received = []
        self.may_start = math.inf
        self.lost = set()
        self.sent = 0
        self.standing = []
        comm = SimpleNamespace(size=2)
        self.receiver = MessagePort(comm, self._on_message, None, None)
        self.sender = MessagePort(comm, None, None, None)
        monkeypatch.setattr(message_port, "post_send", self._send)
        monkeypatch.setattr(standing_receive, "post_receive", self._receive)
        self.receiver.open()

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
            memory, on_finish = self.standing.pop()
            memory.copy_(tensor)
            on_finish()
        return SimpleNamespace(on_finish=lambda callback: None)

    def _receive(self, memory, source, tag, comm, timeout_s):
        def on_finish(callback):
            self.standing.append((memory, callback))

        return SimpleNamespace(done=lambda: False, on_finish=on_finish, wait=lambda: 0)


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
