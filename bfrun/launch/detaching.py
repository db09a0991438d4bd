"""Decides whether a job may go on without its driver."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host

DEFAULT_LIMIT_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}\Z")


def check_name(option: str, name: str) -> None:
    """Raise unless ``name`` can be the name of a job.

    Raises:
        LaunchError: It has other characters, or is too long. Names the option.
    """
    if not _NAME.match(name):
        raise LaunchError(
            f"{option}: expected 1 to 64 letters, digits and underscores, got '{name}'"
        )


def settle_detaching(
    config: LaunchConfig, remote: Collection[Host], *, is_program: bool
) -> LaunchConfig:
    """Return the settings with the limit for a job without a driver, which may be 0.

    Sets ``must_detach``, too. A job with other hosts detaches only if the user asks for
    it with ``--detached-limit`` or ``--job-name``.

    Args:
        config: The user's settings.
        remote: Hosts of the job that are reached over SSH.
        is_program: Whether ``bfrun`` runs a program, rather than ``bfrun.run``.

    Raises:
        LaunchError: The user asks for a job that detaches, but it cannot, or its name
            is invalid.
    """
    obstacle = _obstacle(config, is_program)
    if config.job_name is not None:
        check_name("--job-name", config.job_name)
        if obstacle or config.detached_limit_s == 0:
            why = obstacle or "--detached-limit is 0"
            raise LaunchError(f"--job-name is for jobs that can detach: {why}")
    if config.detached_limit_s is None:
        # Over SSH, it changes what a lost connection means for the job.
        detaches = not obstacle and (not remote or config.job_name is not None)
        return replace(
            config,
            detached_limit_s=DEFAULT_LIMIT_S if detaches else 0.0,
            must_detach=config.job_name is not None,
        )
    if config.detached_limit_s and obstacle:
        raise LaunchError(f"--detached-limit: this job cannot detach: {obstacle}")
    return replace(config, must_detach=bool(config.detached_limit_s))


def _obstacle(config: LaunchConfig, is_program: bool) -> str:
    """Return why a job cannot go on without its driver, or ""."""
    if config.on_failure != "continue":
        return "it ends with its bfrun; add --on-failure continue"
    if config.may_grow:
        return "only bfrun can start more ranks; leave --max-np and the script out"
    if config.respawn:
        return "only bfrun can start lost ranks again; leave --respawn out"
    if config.stdin:
        return "rank 0 reads the standard input of bfrun; leave --stdin out"
    if config.timeline_filename is not None:
        return "bfrun collects its timeline; leave --timeline-filename out"
    if not is_program:
        return "its results go to the process that has started it; use bfrun"
    return ""
