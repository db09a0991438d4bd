"""Host strings and hostfiles."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfrun.errors import LaunchError
from bfrun.hosts import Host, is_local, parse_host, parse_hostfile, parse_hosts

names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,20}[A-Za-z0-9])?", fullmatch=True)
addresses = st.ip_addresses(v=6).map(str)
hosts = st.builds(
    Host,
    name=names | addresses,
    slots=st.none() | st.integers(1, 999_999),
    user=st.none() | st.from_regex(r"[a-z_][a-z0-9_-]{0,10}", fullmatch=True),
)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("host1", Host("host1")),
        ("host1:4", Host("host1", 4)),
        ("node-1.cluster_a.example:16", Host("node-1.cluster_a.example", 16)),
        ("10.0.0.1:2", Host("10.0.0.1", 2)),
        ("[::1]:4", Host("::1", 4)),
        ("[fe80::1%eth0]", Host("fe80::1%eth0")),
        ("ann@host1:4", Host("host1", 4, "ann")),
        ("ann@[2001:db8::1]:3", Host("2001:db8::1", 3, "ann")),
        (" host1:4 ", Host("host1", 4)),
    ],
)
def test_parses_each_form(text, host):
    assert parse_host(text) == host


@given(hosts)
def test_reads_back_what_it_writes(host):
    assert parse_host(str(host)) == host


@given(st.text(max_size=30))
def test_any_text_is_a_host_or_an_error_that_quotes_it(text):
    host, message = None, ""
    try:
        host = parse_host(text)
    except LaunchError as error:
        message = str(error)
    if host is None:
        assert text in message
    else:
        # A name is never an option of a program, and slots are at least 1.
        assert host.name.strip("-") == host.name
        assert host.slots is None or host.slots >= 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("::1", r"write an IPv6 address in brackets: \[::1\]"),
        ("host:0", "whole number of at least 1, got '0'"),
        ("host:-1", "got '-1'"),
        ("host:four", "got 'four'"),
        ("host:", "got ''"),
        ("[::1", "the brackets hold no IPv6 address"),
        ("[10.0.0.1]:2", "the brackets hold no IPv6 address"),
        ("[::1]4", "expected host, host:slots"),
        ("-oProxyCommand=x:1", "expected host, host:slots"),
        ("a b:1", "expected host, host:slots"),
        ("", "expected host, host:slots"),
        ("-l@host", "not a login name"),
    ],
)
def test_says_what_is_wrong_with_a_host(text, match):
    with pytest.raises(LaunchError, match=match):
        parse_host(text)


def test_list_keeps_order_and_adds_up_a_host_named_twice():
    assert parse_hosts("b:2,a:1,b:3,") == (Host("b", 5), Host("a", 1))


def test_empty_list_is_an_error():
    with pytest.raises(LaunchError, match="names no host"):
        parse_hosts(" , ")


def test_hostfile_with_comments_and_empty_lines(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# our machines\n\nhost1 slots=4   # fast\n  host2:2\n[::1] slots=3\nhost3\n"
    )
    assert parse_hostfile(path) == (
        Host("host1", 4),
        Host("host2", 2),
        Host("::1", 3),
        Host("host3"),
    )


@pytest.mark.parametrize("form", ["{} slots=2", "{}:2"])
def test_hostfile_of_the_mpi_operator(tmp_path, form):
    """The operator writes one form for Open MPI, another for MPICH and Intel MPI."""
    names = [f"train-worker-{number}.train.default.svc" for number in range(2)]
    path = tmp_path / "hostfile"
    path.write_text("".join(f"{form.format(name)}\n" for name in names))
    assert parse_hostfile(path) == tuple(Host(name, 2) for name in names)


def test_hostfile_line_per_slot(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a\na\nb\na\n")
    assert parse_hostfile(path) == (Host("a", 3), Host("b"))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "names no host"),
        ("# nothing\n", "names no host"),
        ("a\nb slots=x\n", "line 2: .*got 'x'"),
        ("a gpus=3\n", "line 1: unknown word 'gpus=3'; expected 'host slots=N'"),
        ("a:3 slots=4\n", "line 1: host 'a': slots are given twice"),
    ],
)
def test_hostfile_errors_name_the_line(tmp_path, content, match):
    path = tmp_path / "hosts"
    path.write_text(content)
    with pytest.raises(LaunchError, match=match):
        parse_hostfile(path)


def test_missing_hostfile():
    with pytest.raises(LaunchError, match="cannot be read"):
        parse_hostfile("/nonexistent/hosts")


def test_this_machine_is_local():
    assert is_local(Host("localhost"), [])
    assert is_local(Host("127.0.0.1"), [])
    assert is_local(Host("::1"), [])
    assert is_local(Host(socket.gethostname()), [])
    assert is_local(Host("192.0.2.9"), ["192.0.2.9"])


def test_others_are_not_local():
    assert not is_local(Host("192.0.2.9"), ["192.0.2.10"])
    assert not is_local(Host("localhost", user="ann"), [])
    assert not is_local(Host("no-such-host.invalid"), [])


@given(addresses)
def test_brackets_are_written_again(address):
    assert str(Host(address, 2)) == f"[{ipaddress.ip_address(address)}]:2"
