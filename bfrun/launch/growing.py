"""Checks the options of jobs whose number of ranks changes while they run."""

from __future__ import annotations

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError


def check_growth(config: LaunchConfig, *, is_program: bool) -> None:
    """Raise unless the options for a growing job go together.

    Args:
        config: The user's settings. The number of ranks may still be unknown.
        is_program: Whether ``bfrun`` runs a program, rather than ``bfrun.run``.

    Raises:
        LaunchError: They do not. Names the options.
    """
    if not config.may_grow:
        return
    script = config.host_discovery_script
    option = "--max-np" if script is None else "--host-discovery-script"
    if config.on_failure != "continue":
        raise LaunchError(
            f"{option} is for jobs that go on while ranks come and go, but by default "
            "the first failure ends the job; add --on-failure continue"
        )
    if not is_program:
        raise LaunchError(
            f"{option}: bfrun.run returns one result for each rank of the start, so "
            "its jobs cannot grow; start a program with bfrun"
        )
    if script is not None and config.hosts:
        raise LaunchError(
            "--host-discovery-script names the hosts, so leave -H and --hostfile out"
        )
    if script is None and not config.hosts:
        raise LaunchError(
            "--max-np: the number of free slots is not known; give hosts with -H "
            "host:slots,... or --hostfile F, or --host-discovery-script F"
        )
    _check_numbers(config)
    for other, is_given in {
        "--oversubscribe": config.oversubscribe,
        "--ranks-per-machine": config.ranks_per_machine is not None,
        "--timeline-filename": config.timeline_filename is not None,
    }.items():
        if is_given:
            raise LaunchError(
                f"{option} does not go with {other} yet; leave one of the two out"
            )


def _check_numbers(config: LaunchConfig) -> None:
    most = config.max_np
    if most is None:
        return
    for option, least in (("-np", config.world_size), ("--min-np", config.min_np)):
        if least is not None and most < least:
            raise LaunchError(
                f"--max-np must be at least {option} ({least}), got {most}"
            )
    if most < 1:
        raise LaunchError(f"--max-np must be at least 1, got {most}")
