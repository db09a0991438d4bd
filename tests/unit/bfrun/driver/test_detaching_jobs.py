"""Jobs that may detach: without a record, and without enough descriptors."""

import errno
import os
from types import SimpleNamespace

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver import driver, takeover
from bfrun.errors import LaunchError


@pytest.fixture
def judge(monkeypatch):
    """Return a function that starts a job whose record cannot be written."""

    def create(record):
        raise LaunchError("the disk is full")

    monkeypatch.setattr(driver, "start_agents", lambda *_: [])
    monkeypatch.setattr(driver, "check_capacity", lambda *_: None)
    monkeypatch.setattr(driver, "HeldRecord", SimpleNamespace(create=create))
    monkeypatch.setattr(driver, "_drive", lambda *arguments, **more: arguments[-1])

    def judge(**settings):
        config = LaunchConfig(("x",), detached_limit_s=600.0, **settings)
        return driver.judge_job(SimpleNamespace(hosts=[]), None, config)

    return judge


def test_a_job_runs_without_a_record_that_nobody_asked_for(judge, capsys):
    assert judge() is None
    text = "bfrun: this job cannot detach: the disk is full\n"
    assert capsys.readouterr().err == text


def test_a_job_that_must_detach_needs_its_record(judge):
    with pytest.raises(LaunchError, match="the disk is full"):
        judge(must_detach=True)


def test_a_connection_that_cannot_be_opened_closes_the_others(monkeypatch):
    closed = []

    def connect(path, guard_pid):
        if path == "b":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return SimpleNamespace(close=lambda: closed.append(path))

    monkeypatch.setattr(takeover, "UnixConnection", connect)
    hosts = [SimpleNamespace(name=name, socket=name, guard_pid=1) for name in "ab"]
    with pytest.raises(LaunchError, match="agent on b can be opened: Too many open"):
        takeover.connect(SimpleNamespace(hosts=hosts, key="k"), 30.0)
    assert closed == ["a"]
