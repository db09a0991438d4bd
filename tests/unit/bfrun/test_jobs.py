"""What --stop makes of the end of a job, which a driver reports to it."""

from types import SimpleNamespace

import pytest

from bfrun import jobs
from bfrun.config import LaunchConfig
from bfrun.driver.job_record import NoSuchJob
from bfrun.driver.report import Verdict


@pytest.mark.parametrize(("has_ended", "exit_code"), [(True, 0), (False, 130)])
def test_stop_succeeds_only_if_the_job_has_ended(has_ended, exit_code, monkeypatch):
    held = SimpleNamespace(is_removed=has_ended)
    monkeypatch.setattr(jobs, "_take_over", lambda option, name: held)
    monkeypatch.setattr(jobs, "attach_job", lambda *_, is_to_end: Verdict(130, "SIG"))
    assert jobs.stop("a", LaunchConfig(("x",))) == exit_code


def test_stop_waits_for_agents_that_are_ending(monkeypatch, capsys):
    released = []
    held = SimpleNamespace(release=lambda: released.append(True))

    def take_over(option, name):
        if len(released) == 2:
            raise NoSuchJob("no job 'a'")
        return held

    def attach_job(held, config, *, is_to_end):
        raise NoSuchJob("the job has just ended")

    monkeypatch.setattr(jobs, "_take_over", take_over)
    monkeypatch.setattr(jobs, "attach_job", attach_job)
    assert jobs.stop("a", LaunchConfig(("x",))) == 0
    assert len(released) == 2
    assert "job a has ended" in capsys.readouterr().err
