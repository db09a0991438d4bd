"""From settings to a running job: facts, pre-flight, plan, launcher, driver."""

from __future__ import annotations

import os
import sys

from bfrun.config import LaunchConfig
from bfrun.describe import describe_plan
from bfrun.driver import run_job
from bfrun.hosts import LOCALHOST
from bfrun.launch.local import LocalLauncher
from bfrun.plan import HostFacts, make_plan
from bfrun.probe import numa_domains, visible_gpus


def start(config: LaunchConfig) -> int:
    """Plan the job of ``config``, run it and return its exit code.

    Raises:
        LaunchError: The plan is impossible, a host did not pass the pre-flight, or
            the job could not start. Nothing is left running.
    """
    facts = {LOCALHOST: local_facts()}
    plan = make_plan(config, facts, os.environ)
    for note in plan.notes:
        print(f"bfrun: {note}", file=sys.stderr)
    if config.dry_run:
        print(describe_plan(plan))
        return 0
    if config.verbose:
        print(describe_plan(plan), file=sys.stderr)
    launcher = LocalLauncher()
    try:
        return run_job(plan, launcher, config)
    finally:
        launcher.close()


def local_facts() -> HostFacts:
    """Return the cores and GPUs that ranks may use on this machine."""
    cpus = sorted(os.sched_getaffinity(0))
    domains = tuple(tuple(domain) for domain in numa_domains(cpus))
    return HostFacts(tuple(cpus), domains, tuple(visible_gpus(os.environ)))
