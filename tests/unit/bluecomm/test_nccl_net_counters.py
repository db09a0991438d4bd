"""Test the counters of the network plugin for NCCL, and the server that shows them."""

import socket
import urllib.error
import urllib.request

import pytest

from bluecomm import nccl_net
from bluecomm.nccl_net.counters import format_metrics, parse_counters
from bluecomm.nccl_net.metrics import MetricsServer
from tests.support.deadlines import DEADLINE_S

TEXT = """[
  {"number": 3, "direction": "send", "messages": 3, "bytes": 70000, "streams": [
    {"peer": "10.0.0.2:4242", "bytes_sent": 70100, "chunks_sent": 2,
     "bytes_received": 48, "chunks_received": 0},
    {"peer": "10.0.0.2:4243", "bytes_sent": 5, "chunks_sent": 0,
     "bytes_received": 0, "chunks_received": 0}]},
  {"number": 5, "direction": "recv", "messages": 0, "bytes": 0, "streams": []}]"""


def get(port, path="/metrics"):
    url = f"http://127.0.0.1:{port}{path}"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        return answer.read().decode()


def test_counters_as_objects():
    sends, receives = parse_counters(TEXT)
    assert (sends.direction, sends.messages, sends.nbytes) == ("send", 3, 70000)
    assert sends.streams[0] == nccl_net.StreamCounters("10.0.0.2:4242", 70100, 48, 2, 0)
    assert receives == nccl_net.ConnectionCounters(5, "recv", 0, 0, ())


def test_counters_as_metrics():
    lines = format_metrics(parse_counters(TEXT)).splitlines()
    name = "bluecomm_net_stream_bytes_sent_total"
    labels = 'connection="3",direction="send",stream="1",peer="10.0.0.2:4243"'
    assert f"# TYPE {name} counter" in lines
    assert f"{name}{{{labels}}} 5" in lines
    labels = 'connection="5",direction="recv"'
    assert f"bluecomm_net_messages_total{{{labels}}} 0" in lines


def test_nothing_is_open_in_this_process():
    assert nccl_net.counters() == []


def test_the_endpoint_shows_the_counters():
    with nccl_net.serve_metrics() as server:
        assert "# TYPE bluecomm_net_stream_bytes_sent_total" in get(server.port)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server.port, "/")
        # The server listens on 127.0.0.1 only.
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", server.port), timeout=DEADLINE_S)
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(server.port)


def test_a_silent_client_delays_others_only_briefly():
    with MetricsServer(lambda: "text\n") as server:
        address = ("127.0.0.1", server.port)
        silent, half = (socket.create_connection(address) for _ in range(2))
        with silent, half:
            half.sendall(b"GET /metr")
            assert get(server.port) == "text\n"


def test_the_answer_says_why_counters_cannot_be_read():
    def fail():
        raise RuntimeError("no plugin")

    with (
        MetricsServer(fail) as server,
        pytest.raises(urllib.error.HTTPError, match="503") as caught,
    ):
        get(server.port)
    assert caught.value.read() == b"no plugin\n"


def test_a_port_in_use_is_an_error():
    with (
        MetricsServer(lambda: "") as server,
        pytest.raises(OSError, match="in use"),
    ):
        nccl_net.serve_metrics(server.port)


def test_a_server_may_be_closed_twice():
    with nccl_net.serve_metrics() as server:
        server.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(server.port)
