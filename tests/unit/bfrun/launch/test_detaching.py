"""The choice of jobs that may go on without their driver."""

import pytest

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.detaching import settle_detaching

SURVIVES = {"on_failure": "continue"}


def settled(remote=(), is_program=True, **settings):
    config = LaunchConfig(("x",), **settings)
    return settle_detaching(config, remote, is_program=is_program)


OBSTACLES = [
    ({}, "add --on-failure continue"),
    ({**SURVIVES, "respawn": True}, "leave --respawn out"),
    ({**SURVIVES, "respawn": True, "max_np": 2}, "leave --max-np and the script out"),
    ({**SURVIVES, "stdin": True}, "leave --stdin out"),
    ({**SURVIVES, "timeline_filename": "t"}, "leave --timeline-filename out"),
    ({**SURVIVES, "is_program": False}, "use bfrun"),
]


@pytest.mark.parametrize(("settings", "why"), OBSTACLES)
def test_a_job_that_cannot_detach_ends_with_its_driver(settings, why):
    assert settled(**settings).detached_limit_s == 0.0
    assert settled(**settings, detached_limit_s=0.0).detached_limit_s == 0.0
    with pytest.raises(LaunchError, match=f"--detached-limit: this job cannot.*{why}"):
        settled(**settings, detached_limit_s=5.0)
    with pytest.raises(LaunchError, match=f"--job-name is for jobs that.*{why}"):
        settled(**settings, job_name="a")


def test_the_limit_of_a_job_that_can_detach():
    assert settled(**SURVIVES).detached_limit_s == 600.0
    assert settled(**SURVIVES, detached_limit_s=5.0).detached_limit_s == 5.0
    with pytest.raises(LaunchError, match="--detached-limit is 0"):
        settled(**SURVIVES, detached_limit_s=0.0, job_name="a")


def test_a_job_over_ssh_detaches_only_if_the_user_asks_for_it():
    remote = [Host("a")]
    assert settled(remote, **SURVIVES).detached_limit_s == 0.0
    assert settled(remote, **SURVIVES, job_name="a").detached_limit_s == 600.0
    assert settled(remote, **SURVIVES, detached_limit_s=5.0).detached_limit_s == 5.0
    assert not settled(remote, **SURVIVES).must_detach
    assert settled(remote, **SURVIVES, job_name="a").must_detach


def test_a_job_must_detach_if_the_user_asks_for_it():
    assert not settled(**SURVIVES).must_detach
    assert not settled(**SURVIVES, detached_limit_s=0.0).must_detach
    assert settled(**SURVIVES, detached_limit_s=5.0).must_detach
    assert settled(**SURVIVES, job_name="a").must_detach


@pytest.mark.parametrize("name", ["", "a-b", "a/b", "x" * 65, "a\n"])
def test_a_name_has_letters_digits_and_underscores(name):
    with pytest.raises(LaunchError, match="--job-name: expected 1 to 64 letters"):
        settled(**SURVIVES, job_name=name)
