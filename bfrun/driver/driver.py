"""Runs one job: starts the agents and ranks of a plan, and returns the verdict."""

from __future__ import annotations

import functools
import signal
import sys
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.agent_start import Interrupted, start_agents
from bfrun.driver.capacity import check_capacity, make_room_for_logs
from bfrun.driver.hints import hint_of
from bfrun.driver.job import Job
from bfrun.driver.report import Verdict, make_verdict
from bfrun.driver.signals import SignalWatch
from bfrun.launch.base import Launcher
from bfrun.output.logs import LogFiles
from bfrun.output.printer import Printer
from bfrun.output.streams import remark, takes_text
from bfrun.plan import LaunchPlan
from bfrun.task import Task


def run_job(plan: LaunchPlan, launcher: Launcher, config: LaunchConfig) -> int:
    """Start every process of ``plan``, watch the job, and end all processes.

    Args:
        plan: The ranks of each host.
        launcher: Starts the agents. The caller owns it.
        config: Time limits and output options.

    Returns:
        0 if no rank failed, otherwise the exit code of the first rank that failed
        (128 + signal).

    Raises:
        LaunchError: Some agents could not be started. No process is left running.
    """
    verdict = judge_job(plan, launcher, config)
    if verdict.report and not (verdict.unread and not takes_text(sys.stderr)):
        remark(verdict.report)
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
        task: The call that ranks make, if any; takes their results.
    """
    with SignalWatch() as signals:
        hosts = [host.host for host in plan.hosts]
        try:
            sessions = start_agents(hosts, launcher, config, signals)
        except Interrupted as error:
            name = signal.Signals(error.number).name
            text = f"bfrun: ended by {name} while the agents were starting"
            return Verdict(128 + error.number, text)
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
    check_capacity(plan, sessions)
    logs = None
    if config.output_dir is not None:
        make_room_for_logs(plan.world_size)
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
    if logs is not None:
        job.printer.say(f"bfrun: logs of the ranks: {logs.folder}")
    if config.verbose:
        for session in sessions:
            job.printer.say(f"bfrun: {describe_agent(session)}")
    try:
        leftovers = job.run()
    finally:
        all_shown = job.printer.close(job.leaves_output)
        job.close()
    number = job.interrupted_by
    verdict = make_verdict(
        job.membership.failures,
        leftovers,
        losses=job.membership.losses,
        joined=job.membership.remaining,
        world_size=plan.world_size,
        interrupted_by=None if number is None else signal.Signals(number).name,
        interrupted_code=0 if number is None else 128 + number,
        tails=job.printer.tails(),
        log_paths=logs.stderr_paths() if logs is not None else {},
        left_early=job.membership.left_early(),
        # The caller of a function gets the report as an exception, without the output.
        shown=job.printer.shown(range(plan.world_size)) if task is None else (),
        verbose=config.verbose,
        hint_of=functools.partial(hint_of, config),
    )
    return replace(verdict, unread=not all_shown)


def describe_agent(session: AgentSession) -> str:
    """Return one line about an agent that is ready."""
    ready = session.ready
    assert ready is not None
    return (
        f"agent on {session.host.name}: pid {ready.agent_pid}, "
        f"guard {ready.guard_pid}, hostname {ready.hostname}, "
        f"Python {ready.python} ({ready.executable})"
    )
