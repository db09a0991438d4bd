"""Drives a notebook job: runs bfrun's own driver and a controller."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.driver.driver import run_job
from bfrun.launch.base import Launcher
from bfrun.notebook.controller import Controller, own_address
from bfrun.notebook.profile import Profile
from bfrun.notebook.state import HeldState, hold_state
from bfrun.output.streams import remark
from bfrun.plan import HostPlan, LaunchPlan, ProcessSpec
from bfrun.start import start


def serve(config: LaunchConfig, profile: Profile) -> int:
    """Run controller and engines until the job ends, and return its exit code.

    Args:
        config: Settings of the engines; the command is ignored.
        profile: Profile in which clients find the controller.

    Raises:
        LaunchError: The profile already has a job, or this one cannot start.
    """
    profile.make()
    # While ranks run, the driver handles signals. Before and after, the exit below ends
    # the controller, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with hold_state(profile.state, profile.name) as state:
        if state.stale is not None:
            remark(
                f"ibfrun: the last job (pid {state.stale.pid}) did not shut down "
                "cleanly; its state was removed"
            )
        job = _Job(profile, state)
        return start(config, job.run)


class _Job:
    def __init__(self, profile: Profile, state: HeldState) -> None:
        self._profile = profile
        self._state = state

    def run(self, plan: LaunchPlan, launcher: Launcher, config: LaunchConfig) -> int:
        addresses = [own_address(host) for host in plan.hosts]
        limit_s = config.start_timeout_s
        with Controller(self._profile, addresses, limit_s) as controller:
            self._state.write(plan.world_size, serving=True)
            hosts = tuple(
                self._with_engines(host, controller.connection_for(address), limit_s)
                for host, address in zip(plan.hosts, addresses, strict=True)
            )
            return run_job(replace(plan, hosts=hosts), launcher, config)

    def _with_engines(
        self, host: HostPlan, connection: str, limit_s: float
    ) -> HostPlan:
        processes = tuple(
            self._engine(spec, connection, limit_s) for spec in host.processes
        )
        return replace(host, processes=processes)

    def _engine(
        self, spec: ProcessSpec, connection: str, limit_s: float
    ) -> ProcessSpec:
        command = (
            *(sys.executable, "-m", "ipyparallel.engine"),
            f"--profile={self._profile.name}",
            "--BaseIPythonApplication.auto_create=True",
            # The engine gets the number of its rank.
            f"--IPEngine.id={spec.rank}",
            f"--IPEngine.timeout={limit_s:g}",
            "--log-level=ERROR",
        )
        # A command line would be visible to every user of the host.
        environment = {**spec.environment, "IPP_CONNECTION_INFO": connection}
        if "IPYTHONDIR" in os.environ:
            environment.setdefault("IPYTHONDIR", os.environ["IPYTHONDIR"])
        return replace(spec, command=command, environment=environment)
