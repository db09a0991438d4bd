"""Runs one job: starts the agents and ranks of a plan, and ends with a verdict."""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bfrun.agent_session import AgentSession
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.job import Job
from bfrun.launch.base import Launcher
from bfrun.logs import LogFiles
from bfrun.output import Printer
from bfrun.plan import LaunchPlan
from bfrun.report import Verdict, make_verdict
from bfrun.signals import SignalWatch
from bfrun.task import Task

AGENT_START_LIMIT_S = 30.0
_PARALLEL_STARTS = 32


def run_job(plan: LaunchPlan, launcher: Launcher, config: LaunchConfig) -> int:
    """Start every process of ``plan``, watch the job, and end all of it.

    Args:
        plan: Who runs where.
        launcher: How an agent is started on a host. Stays owned by the caller.
        config: Time limits and output options.

    Returns:
        0 when every rank ended well, else the exit code of the first rank that
        failed (128 + signal).

    Raises:
        LaunchError: Not every agent could be started; nothing is left running.
    """
    verdict = judge_job(plan, launcher, config)
    if verdict.report:
        print(verdict.report, file=sys.stderr, flush=True)
    return verdict.exit_code


def judge_job(
    plan: LaunchPlan,
    launcher: Launcher,
    config: LaunchConfig,
    *,
    task: Task | None = None,
) -> Verdict:
    """Run a job as ``run_job`` does, and return the verdict instead of printing it.

    Args:
        plan: As for ``run_job``.
        launcher: As for ``run_job``.
        config: As for ``run_job``.
        task: The call that ranks make; gets their results.
    """
    with SignalWatch() as signals:
        sessions = start_agents(plan, launcher, config, signals)
        try:
            return _drive(plan, config, sessions, signals, task)
        finally:
            for session in sessions:
                session.close()


def _drive(
    plan: LaunchPlan,
    config: LaunchConfig,
    sessions: list[AgentSession],
    signals: SignalWatch,
    task: Task | None,
) -> Verdict:
    logs = None
    if config.output_dir is not None:
        logs = LogFiles(config.output_dir, [spec.rank for spec in plan.processes])
    job = Job(
        plan,
        config,
        sessions,
        signals,
        functools.partial(
            Printer,
            only=config.only_rank,
            timestamps=config.prefix_timestamp,
            logs=logs,
            prompts=config.stdin,
        ),
        task,
    )
    if config.verbose:
        for session in sessions:
            job.printer.say(f"bfrun: {describe_agent(session)}")
    try:
        leftovers = job.run()
    finally:
        job.printer.close()
    number = job.interrupted_by
    return make_verdict(
        job.membership.failures,
        leftovers,
        interrupted_by=None if number is None else signal.Signals(number).name,
        interrupted_code=0 if number is None else 128 + number,
        tails=job.printer.tails(),
        log_paths=logs.stderr_paths() if logs is not None else {},
        verbose=config.verbose,
    )


def start_agents(
    plan: LaunchPlan, launcher: Launcher, config: LaunchConfig, signals: SignalWatch
) -> list[AgentSession]:
    """Start an agent on every host of the plan, all at once.

    Returns:
        Sessions in the order of the hosts, each ready.

    Raises:
        LaunchError: At least one did not start; names each. The others are closed.
    """
    pythons = [config.python] if config.python else [sys.executable, "python3"]
    limit_s = min(AGENT_START_LIMIT_S, config.start_timeout_s)

    def start(host: Host) -> AgentSession | LaunchError:
        try:
            return AgentSession.start(launcher, host, pythons, limit_s)
        except LaunchError as error:
            return error

    hosts = [host.host for host in plan.hosts]
    if len(hosts) == 1:
        results = [start(hosts[0])]
    else:
        with ThreadPoolExecutor(min(len(hosts), _PARALLEL_STARTS)) as pool:
            results = list(pool.map(start, hosts))
    sessions = [result for result in results if isinstance(result, AgentSession)]
    errors = [result for result in results if isinstance(result, LaunchError)]
    try:
        if not errors:
            errors = _await_ready(sessions, limit_s, lambda: bool(signals.take()))
        if errors:
            raise LaunchError("\n".join(str(error) for error in errors))
    except BaseException:
        for session in sessions:
            session.close()
        raise
    return sessions


def _await_ready(
    sessions: list[AgentSession], limit_s: float, interrupted: Callable[[], bool]
) -> list[LaunchError]:
    """Wait until every agent has spoken; return the errors of those that have not."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        waiting = [s for s in sessions if s.ready is None and not s.lost]
        if not waiting:
            break
        for session in waiting:
            session.flush()
            session.receive()
        if interrupted():
            return [LaunchError("interrupted while the agents were starting")]
        time.sleep(0.002)
    return [s.start_error(limit_s) for s in sessions if s.ready is None]


def describe_agent(session: AgentSession) -> str:
    """Return one line about a started agent."""
    ready = session.ready or {}
    return (
        f"agent on {session.host.name}: pid {ready.get('agent_pid')}, "
        f"guard {ready.get('guard_pid')}, hostname {ready.get('hostname')}, "
        f"Python {ready.get('python')} ({ready.get('executable')})"
    )
