"""Runs one job: starts the agents and ranks of a plan, and returns the verdict."""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.driver.agent_search import AgentSearch, search_limit_s
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.agent_start import Interrupted, start_agents
from bfrun.driver.capacity import check_capacity, make_room_for_logs
from bfrun.driver.hints import hint_of
from bfrun.driver.host_arrivals import HostArrivals, Survey
from bfrun.driver.job import Job
from bfrun.driver.job_record import HeldRecord, NoSuchJob
from bfrun.driver.report import Verdict, make_verdict
from bfrun.driver.signals import SignalWatch
from bfrun.driver.takeover import (
    Takeover,
    address_of,
    check_ended,
    connect,
    connect_over_ssh,
    plan_of,
    record_of,
    settings_of,
    take_over,
)
from bfrun.errors import LaunchError
from bfrun.launch.base import Launcher
from bfrun.launch.relay import reach_agent
from bfrun.output.logs import LogFiles
from bfrun.output.printer import Printer
from bfrun.output.streams import remark, takes_text
from bfrun.plan import LaunchPlan
from bfrun.task import Task

# Seconds for which a driver that detaches goes on to show output.
_LAST_OUTPUT_S = 1.0


def run_job(
    plan: LaunchPlan,
    launcher: Launcher,
    config: LaunchConfig,
    *,
    survey: Survey | None = None,
) -> int:
    """Start every process of ``plan``, watch the job, and end all processes.

    Args:
        plan: The ranks of each host.
        launcher: Starts the agents. The caller owns it.
        config: Time limits and output options.
        survey: Checks hosts that the discovery script names while the job runs. None if
            such hosts get no ranks.

    Returns:
        0 if no rank failed, otherwise the exit code of the first rank that failed
        (128 + signal).

    Raises:
        LaunchError: Some agents could not be started. No process is left running.
    """
    return show_verdict(judge_job(plan, launcher, config, survey=survey))


def show_verdict(verdict: Verdict) -> int:
    """Print the report of a job, unless nobody reads it, and return the exit code."""
    if verdict.report and not (verdict.unread and not takes_text(sys.stderr)):
        remark(verdict.report)
    return verdict.exit_code


def judge_job(
    plan: LaunchPlan,
    launcher: Launcher,
    config: LaunchConfig,
    *,
    task: Task | None = None,
    survey: Survey | None = None,
) -> Verdict:
    """Run a job as ``run_job`` does, and return the verdict instead of printing it.

    Args:
        plan: As for ``run_job``.
        launcher: As for ``run_job``.
        config: As for ``run_job``.
        task: The call that ranks make, if any; takes their results.
        survey: As for ``run_job``.
    """
    with SignalWatch() as signals:
        hosts = [host.host for host in plan.hosts]
        try:
            sessions = start_agents(hosts, launcher, config, signals)
        except Interrupted as error:
            name = signal.Signals(error.number).name
            text = f"bfrun: ended by {name} while the agents were starting"
            return Verdict(128 + error.number, text)
        record = None
        try:
            check_capacity(plan, sessions)
            record = _make_record(plan, config, sessions, launcher)
            return _drive(plan, config, sessions, signals, task, record, survey=survey)
        except LaunchError:  # no rank runs
            if record is not None:
                record.remove()
            raise
        finally:
            for session in sessions:
                session.close()
            if record is not None:
                record.release()


def _make_record(
    plan: LaunchPlan,
    config: LaunchConfig,
    sessions: list[AgentSession],
    launcher: Launcher,
) -> HeldRecord | None:
    """Return the record of a new job, or None if the job ends with this process.

    Raises:
        LaunchError: The record cannot be written, and the user needs one.
    """
    if not config.detached_limit_s:
        return None
    try:
        return HeldRecord.create(record_of(plan, config, sessions, launcher))
    except LaunchError as error:
        if config.must_detach:
            raise
        remark(f"bfrun: this job cannot detach: {error}")
        return None


def attach_job(
    record: HeldRecord, config: LaunchConfig, *, is_to_end: bool = False
) -> Verdict:
    """Drive a job that has lost its driver.

    Args:
        record: Record of the job. It is released at the end, and removed if the job
            has ended.
        config: Settings for the output; all others come from the record.
        is_to_end: Whether to end the job, as after SIGTERM.

    Raises:
        LaunchError: No agent of the job answers.
        NoSuchJob: All agents have ended, or are about to.
    """
    job = record.record
    config = settings_of(job, config)
    plan = plan_of(job)
    sessions: list[AgentSession] = []
    with SignalWatch() as signals:
        try:
            if job.is_over_ssh:
                sessions = connect_over_ssh(job, config)
            else:
                sessions = connect(job, config.link_timeout_s)
            takeover = take_over(
                sessions, signals, is_over_ssh=job.is_over_ssh, is_to_end=is_to_end
            )
            return _drive(plan, config, sessions, signals, None, record, takeover)
        except Interrupted as error:
            name = signal.Signals(error.number).name
            text = f"bfrun: ended by {name} before it was attached; the job goes on"
            return Verdict(128 + error.number, text)
        except NoSuchJob:
            if job.is_over_ssh:
                check_ended(sessions)
                record.remove()
            raise
        finally:
            for session in sessions:
                session.close()
            record.release()


def _drive(
    plan: LaunchPlan,
    config: LaunchConfig,
    sessions: list[AgentSession],
    signals: SignalWatch,
    task: Task | None,
    record: HeldRecord | None,
    takeover: Takeover | None = None,
    survey: Survey | None = None,
) -> Verdict:
    logs = None
    if config.output_dir is not None:
        most = max(plan.world_size, sum(host.slots for host in plan.hosts))
        make_room_for_logs(most)
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
        record=record,
        takeover=takeover,
        make_search=_search_maker(record, config, sessions, signals),
        make_arrivals=_arrivals_maker(survey, config, signals),
    )
    if takeover is not None and record is not None:
        job.printer.say(f"bfrun: attached to job {record.record.name}")
    if logs is not None:
        job.printer.say(f"bfrun: logs of the ranks: {logs.folder}")
    if config.verbose:
        for session in sessions:
            if session.ready is not None:
                job.printer.say(f"bfrun: {describe_agent(session)}")
    give_up = job.leaves_output
    try:
        leftovers = job.run()
        if leftovers is None:
            give_up = _expires_after(_LAST_OUTPUT_S)
    finally:
        all_shown = job.printer.close(give_up)
        job.close()
    if leftovers is None:
        job.detach()
        assert record is not None
        return Verdict(128 + signal.SIGHUP, _farewell(job, config, record.record.name))
    if record is not None and record.record.is_over_ssh and leftovers.silent:
        record.release()  # --stop may reach the rest later
    elif record is not None:
        record.remove()
    number = job.interrupted_by
    verdict = make_verdict(
        job.membership.failures,
        leftovers,
        losses=job.membership.losses,
        joined=job.membership.remaining,
        left=job.membership.left,
        world_size=job.size,
        interrupted_by=None if number is None else signal.Signals(number).name,
        interrupted_code=0 if number is None else 128 + number,
        tails=job.printer.tails(),
        log_paths=logs.stderr_paths() if logs is not None else {},
        left_early=job.membership.left_early(),
        # The caller of a function gets the report as an exception, without the output.
        shown=job.printer.shown(range(job.size)) if task is None else (),
        verbose=config.verbose,
        hint_of=functools.partial(hint_of, config),
    )
    return replace(verdict, unread=not all_shown)


def _search_maker(
    record: HeldRecord | None,
    config: LaunchConfig,
    sessions: list[AgentSession],
    signals: SignalWatch,
) -> Callable[[AgentSession], AgentSearch] | None:
    """Return what makes the search for a lost agent, or None if there is none."""
    if record is None or not record.record.is_over_ssh:
        return None
    job = record.record
    address = dict(zip(sessions, map(address_of, job.hosts), strict=True))
    limit_s = search_limit_s(config.detached_limit_s or 0.0, config.link_timeout_s)

    def make(session: AgentSession) -> AgentSearch:
        reach = functools.partial(reach_agent, address[session], config)
        return AgentSearch(session, reach, job.key, limit_s, signals.wake)

    return make


def _arrivals_maker(
    survey: Survey | None, config: LaunchConfig, signals: SignalWatch
) -> Callable[[Callable[[str], None]], HostArrivals] | None:
    """Return what makes the means to add hosts to the job, or None if there is none."""
    if survey is None:
        return None
    return functools.partial(HostArrivals, config, survey, wake=signals.wake)


def _expires_after(seconds: float) -> Callable[[], bool]:
    """Return a function that says whether so much time has passed since now."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


def _farewell(job: Job, config: LaunchConfig, name: str) -> str:
    """Return how to come back to a job from which this process has detached."""
    return (
        f"bfrun: detached, because of {job.detached_by}; the ranks of job {name} go on "
        f"for at most {config.detached_limit_s:g} s without a bfrun. Take the job over "
        f"with bfrun --attach {name}, or end it with bfrun --stop {name}"
    )


def describe_agent(session: AgentSession) -> str:
    """Return one line about an agent that is ready."""
    ready = session.ready
    assert ready is not None
    return (
        f"agent on {session.host.name}: pid {ready.agent_pid}, "
        f"guard {ready.guard_pid}, hostname {ready.hostname}, "
        f"Python {ready.python} ({ready.executable})"
    )
