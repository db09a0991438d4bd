import socket

from bfrun.agent import ports
from bfrun.agent.ports import ephemeral_range, free_port


def test_the_port_is_free_and_not_ephemeral():
    port = free_port()
    low, high = ephemeral_range()
    assert not low <= port <= high
    with socket.socket() as sock:
        sock.bind(("", port))


def test_without_the_kernels_word_the_usual_range_counts(monkeypatch):
    def refuse(path):
        raise OSError

    monkeypatch.setattr(ports, "open", refuse, raising=False)
    assert ephemeral_range() == (32768, 60999)
