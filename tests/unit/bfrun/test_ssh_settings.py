"""Tests the settings for logging in, and the errors; without a network."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path

import paramiko
import pytest

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.ssh_errors import UnknownHostKey, explain
from bfrun.launch.ssh_settings import SshSettings, read_ssh_config, ssh_settings


def settings(text: str, host: Host | None = None, **options) -> SshSettings:
    config = LaunchConfig(command=("x",), **options)
    return ssh_settings(
        config, paramiko.SSHConfig.from_text(text), host or Host("node1")
    )


def test_without_settings():
    got = settings("")
    assert (got.address, got.port, got.user) == ("node1", 22, getpass.getuser())
    assert got.identity_files == ()
    assert not got.accepts_unknown_key
    assert got.jumps == ()
    assert got.known_hosts[0] == str(Path("~/.ssh/known_hosts").expanduser())


def test_settings_file_is_followed():
    got = settings(
        "Host node*\n  HostName 10.0.0.7\n  Port 2222\n  User ann\n"
        "  IdentityFile ~/key\n  UserKnownHostsFile /a /b\n  ConnectTimeout 3\n"
    )
    assert (got.name, got.address, got.port) == ("node1", "10.0.0.7", 2222)
    assert got.user == "ann"
    assert got.identity_files == (str(Path("~/key").expanduser()),)
    assert got.known_hosts[:2] == ("/a", "/b")
    assert got.connect_timeout_s == 3.0


def test_options_override_the_settings_file(tmp_path):
    key = tmp_path / "key"
    key.touch()
    got = settings(
        "Host *\n  Port 2222\n  User ann\n  IdentityFile /other\n",
        Host("node1", user="bob"),
        ssh_port=99,
        ssh_identity_file=str(key),
    )
    assert (got.port, got.user, got.identity_files) == (99, "bob", (str(key),))


@pytest.mark.parametrize(
    ("word", "accepts"), [("no", True), ("accept-new", True), ("yes", False)]
)
def test_strict_host_key_checking(word, accepts):
    got = settings(f"Host *\n  StrictHostKeyChecking {word}\n")
    assert got.accepts_unknown_key == accepts


def test_jump_hosts_have_settings_of_their_own():
    got = settings(
        "Host node1\n  ProxyJump gate,ann@[::1]:2200\n"
        "Host gate\n  HostName gate.example\n  Port 2022\n",
        ssh_port=99,
    )
    gate, second = got.jumps
    assert (gate.address, gate.port) == ("gate.example", 2022)
    assert (second.address, second.port, second.user) == ("::1", 2200, "ann")
    assert got.port == 99


def test_no_jump_where_it_is_switched_off():
    text = "Host node1\n  ProxyJump none\nHost *\n  ProxyJump gate\n"
    assert settings(text).jumps == ()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("Host *\n  ProxyCommand nc %h %p\n", "uses? ProxyCommand.*use ProxyJump"),
        ("Host *\n  ProxyJump a:b:c\n", r"expected \[user@\]host\[:port\]"),
    ],
)
def test_settings_that_cannot_be_used(text, match):
    with pytest.raises(LaunchError, match=match):
        settings(text)


def test_missing_identity_file():
    with pytest.raises(LaunchError, match="'/no/key': the file does not exist"):
        settings("", ssh_identity_file="/no/key")


def test_settings_file_of_the_user_must_exist(tmp_path, monkeypatch):
    with pytest.raises(LaunchError, match="cannot be read"):
        read_ssh_config(str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_ssh_config(None).lookup("a")["hostname"] == "a"


GATE = settings("", Host("gate"))
TARGET = settings("Host node1\n  HostName 10.0.0.7\n  Port 2222\n  User ann\n")


@pytest.mark.parametrize(
    ("error", "reason", "remedy"),
    [
        (
            UnknownHostKey("ssh-ed25519", "SHA256:abc"),
            "its SSH host key is not known: ssh-ed25519 SHA256:abc",
            "run 'ssh -p 2222 ann@10.0.0.7' once",
        ),
        (
            paramiko.AuthenticationException("no"),
            "login refused, because no key was accepted and bfrun asks for no password",
            "ssh-copy-id",
        ),
        (socket.gaierror(-2, "unknown"), "its name has no address", "HostName"),
        (TimeoutError(), "no answer", "no firewall"),
        (
            paramiko.ssh_exception.NoValidConnectionsError(
                {("10.0.0.7", 2222): ConnectionRefusedError(111, "Connection refused")}
            ),
            "no connection: Connection refused",
            "sshd runs there",
        ),
        (
            paramiko.ChannelException(1, "Administratively prohibited"),
            "the SSH server refused: Administratively prohibited",
            "allows the session",
        ),
        (paramiko.SSHException("no banner"), "no SSH connection: no banner", "room"),
        (EOFError(), "no SSH connection: EOFError", "room"),
    ],
)
def test_failures_have_host_reason_and_remedy(error, reason, remedy):
    text = explain(TARGET, TARGET, error)
    assert text.startswith(f"host 'node1': {reason}")
    assert "(ann@10.0.0.7 port 2222); " in text
    assert remedy in text.partition("; ")[2]


def test_failing_jump_host_is_named():
    text = explain(TARGET, GATE, TimeoutError())
    assert text.startswith("host 'node1', jump host 'gate': no answer")
