"""Turns settings into a running job: pre-flight, plan, launcher, driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.describe import describe_addresses, describe_plan
from bfrun.driver.driver import run_job
from bfrun.driver.host_discovery import await_hosts, find_script
from bfrun.errors import LaunchError
from bfrun.hosts import LOCALHOST, Host
from bfrun.launch.base import Launcher
from bfrun.launch.choose import (
    Choice,
    check_failures,
    choose_launcher,
    refuse_survival,
)
from bfrun.launch.detaching import settle_detaching
from bfrun.launch.growing import check_growth
from bfrun.nccl_net import with_nccl_net
from bfrun.output.streams import remark, whole_stdout
from bfrun.plan import HostFacts, LaunchPlan, make_plan, with_addresses
from bfrun.preflight.preflight import HostReport, run_preflight
from bfrun.preflight.survey import HostSurvey
from bfrun.preflight.this_machine import (
    allowed_addresses,
    local_addresses,
    local_facts,
)
from bfrun.trace.target import check_target

RunJob = Callable[[LaunchPlan, Launcher, LaunchConfig], int]


def start(config: LaunchConfig, run: RunJob = run_job) -> int:
    """Plan the job of ``config``, run it and return its exit code.

    With ``config.check`` or ``config.dry_run`` it starts nothing.

    Args:
        config: The user's settings.
        run: Function that runs the plan.

    Raises:
        LaunchError: The plan is impossible, a host failed the pre-flight, or the job
            could not start. No process of the job is left running.
    """
    config = with_nccl_net(config, os.environ)
    check_failures(config)
    check_growth(config, is_program=run is run_job)
    if config.launcher == "mpi":
        settle_detaching(config, (), is_program=True)
        refuse_survival(config, "mpi")
        return _start_mpi(config, run)
    config = _discover(config)
    choice = choose_launcher(config, os.environ)
    config, launcher = choice.config, choice.launcher
    hosts = config.hosts or (LOCALHOST,)
    try:
        reports: Sequence[HostReport] = ()
        if _needs_preflight(config, choice.remote):
            reports = run_preflight(config, hosts, launcher, os.environ)
        config = settle_detaching(config, choice.remote, is_program=run is run_job)
        if config.check:
            # rich takes a tenth of a second to import.
            from bfrun.preflight.check import print_check

            with whole_stdout():
                passed = print_check(reports, sys.stdout)
            return 0 if passed else 1
        plan = _plan(choice, hosts, reports)
        check_failures(replace(config, world_size=plan.world_size))
        if config.timeline_filename is not None:
            check_target(config.timeline_filename)
        if config.dry_run:
            with whole_stdout():
                print(describe_plan(plan))
            return 0
        if config.host_discovery_script is not None:
            survey = HostSurvey(os.environ)
            return run_job(plan, launcher, config, survey=survey)
        return run(plan, launcher, config)
    finally:
        launcher.close()


def _discover(config: LaunchConfig) -> LaunchConfig:
    """Return the settings of a job with the hosts that it begins with.

    A job that may grow also starts lost ranks again.

    Raises:
        LaunchError: The discovery script cannot be run, or names too few slots.
    """
    if not config.may_grow:
        return config
    config = replace(config, respawn=True)
    if config.host_discovery_script is None:
        return config
    script = find_script(config.host_discovery_script)
    least = config.world_size or config.min_np or 1
    hosts = await_hosts(script, least, config.start_timeout_s, remark)
    return replace(config, host_discovery_script=script, hosts=hosts)


def _start_mpi(config: LaunchConfig, run: RunJob) -> int:
    if run is not run_job:
        raise LaunchError(
            "--launcher mpi starts no agents, which bfrun.run and ibfrun need; use "
            "another launcher, or start a script"
        )
    from bfrun.mpi.job import run_mpi

    return run_mpi(config, os.environ)


def _needs_preflight(config: LaunchConfig, remote: frozenset[Host]) -> bool:
    if config.check or not config.dry_run:
        return config.check or bool(remote)
    # A dry run connects only to hosts whose cores or GPUs the plan depends on.
    depends = config.bind_to != "none" or config.gpus_per_rank is not None
    return any(depends or host.slots is None for host in remote)


def _plan(
    choice: Choice, hosts: Sequence[Host], reports: Sequence[HostReport]
) -> LaunchPlan:
    config = choice.config
    facts: Mapping[Host, HostFacts]
    if reports:
        from bfrun.preflight.check import raise_failures

        raise_failures(reports)
        facts = {report.host: report.facts for report in reports}
    else:
        facts = {host: local_facts() for host in hosts if host not in choice.remote}
    # A batch system may let a job see more cores than it has allocated to the job.
    facts = {
        host: replace(known, cpus=known.cpus[: choice.cores.get(host)])
        for host, known in facts.items()
    }
    plan = make_plan(config, facts, os.environ)
    plan = with_addresses(plan, _addresses(choice, hosts, reports))
    for note in plan.notes:
        remark(f"bfrun: {note}")
    if config.enable_net and not config.dry_run:
        for report in reports:
            remark(
                f"bfrun: host '{report.host.name}': NCCL's network is "
                f"{report.nccl_network}"
            )
    if config.verbose and not config.dry_run:
        remark(f"{describe_plan(plan)}\n{describe_addresses(plan)}")
    return plan


def _addresses(
    choice: Choice, hosts: Sequence[Host], reports: Sequence[HostReport]
) -> dict[Host, tuple[str, ...]]:
    """Return the addresses at which the ranks on each host listen, best first."""
    addresses: dict[Host, tuple[str, ...]] = dict.fromkeys(hosts, ())
    addresses |= {report.host: report.addresses for report in reports}
    config = choice.config
    if config.host_discovery_script is None:
        return addresses
    # Without other hosts, loopback is enough now, but more hosts may come.
    for report in reports:
        if len(reports) == 1 and report.answer:
            found = report.answer["addresses"]
            addresses[report.host] = allowed_addresses(config, found)
    if not choice.remote:
        addresses |= dict.fromkeys(hosts, local_addresses(config))
    return addresses
