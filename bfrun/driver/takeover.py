"""Takes over the agents of a job whose driver has ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

from bfrun.agent import attach_server
from bfrun.config import LaunchConfig
from bfrun.driver.agent_session import AgentSession
from bfrun.driver.agent_start import Interrupted
from bfrun.driver.job_record import HostRecord, NoSuchJob, RunningJob
from bfrun.driver.signals import SignalWatch
from bfrun.env import Placement
from bfrun.errors import LaunchError
from bfrun.frames.agent_to_driver import AGENT_TO_DRIVER
from bfrun.frames.frame import Frame, decode
from bfrun.hosts import Host
from bfrun.launch.base import Launcher
from bfrun.launch.relay import AgentAddress, ReachedAgent, reach_agent
from bfrun.launch.unix_socket import UnixConnection
from bfrun.plan import HostPlan, LaunchPlan, ProcessSpec

# Seconds in which all agents must answer. They answer at once unless they are stopped.
_ANSWER_S = 30.0
_LOOK_S = 0.1
# Seconds in which an agent that has hung up ends, and its relay says so.
_END_S = 12.0


@dataclass(frozen=True)
class Takeover:
    """The past of a job, as a driver learns it that takes the job over.

    Attributes:
        started: When the job started, on the clock ``time.monotonic``.
        reports: Reports that earlier drivers have got, or would have got, in order,
            each with the time of its arrival.
        news: Frames that have arrived since, in order.
        is_to_end: Whether to end the job.
    """

    started: float
    reports: Sequence[tuple[float, Frame]]
    news: Sequence[tuple[AgentSession, Frame]]
    is_to_end: bool = False


def connect_over_ssh(record: RunningJob, config: LaunchConfig) -> list[AgentSession]:
    """Connect to the agents of a job with hosts that are reached over SSH.

    The caller closes the sessions. If an agent cannot be reached, its session is lost
    from the start.

    Args:
        record: Record of the job.
        config: Settings for SSH and for the connections.
    """
    key, timeout_s = record.key, config.link_timeout_s

    def reach(host: HostRecord) -> ReachedAgent | str:
        try:
            return reach_agent(address_of(host), config)
        except Exception as error:
            return f"{error}"

    sessions = []
    with ThreadPoolExecutor(min(32, len(record.hosts))) as pool:
        answers = pool.map(reach, record.hosts)
        for place, reached in zip(record.hosts, answers, strict=True):
            host = _host_of(place)
            if isinstance(reached, ReachedAgent):
                session = AgentSession.attach(
                    host,
                    reached.connection,
                    key,
                    timeout_s,
                    marker=reached.marker,
                    archive=reached.archive,
                )
            else:
                session = AgentSession.unreached(host, reached, timeout_s)
            sessions.append(session)
    return sessions


def address_of(host: HostRecord) -> AgentAddress:
    """Return how to reach the agent of a host."""
    return AgentAddress(
        host=_host_of(host),
        is_remote=host.is_remote,
        python=host.python,
        socket=host.socket,
        machine_id=host.machine_id,
        pids=(host.agent_pid, host.guard_pid),
    )


def _host_of(host: HostRecord) -> Host:
    return Host(host.name, user=host.user)


def connect(record: RunningJob, link_timeout_s: float) -> list[AgentSession]:
    """Connect to the agents of a job on this machine. The caller closes the sessions.

    A session is lost soon if its agent has ended.

    Raises:
        LaunchError: This process has too many open files.
    """
    sessions = []
    with contextlib.ExitStack() as stack:
        for host in record.hosts:
            try:
                connection = UnixConnection(host.socket, host.guard_pid)
            except OSError as error:
                raise LaunchError(
                    f"no socket for the agent on {host.name} can be opened: "
                    f"{error.strerror or error}; raise the limit of open files "
                    "(ulimit -n)"
                ) from error
            stack.callback(connection.close)
            sessions.append(
                AgentSession.attach(
                    Host(host.name), connection, record.key, link_timeout_s
                )
            )
        stack.pop_all()
    return sessions


def take_over(
    sessions: Sequence[AgentSession],
    signals: SignalWatch,
    *,
    is_over_ssh: bool,
    is_to_end: bool,
) -> Takeover:
    """Receive what has happened before from all agents that have not ended.

    Args:
        sessions: One for each host of the job.
        signals: Signals to this process.
        is_over_ssh: Whether some hosts of the job are reached over SSH.
        is_to_end: Whether the job is to be ended.

    Raises:
        LaunchError: An agent does not answer, and the job is on this machine. Over SSH
            the session is lost then.
        NoSuchJob: No agent has answered, because all have ended, or are about to.
        Interrupted: The user interrupted it.
    """
    deadline = time.monotonic() + _ANSWER_S
    news: list[tuple[AgentSession, Frame]] = []
    while waiting := [one for one in sessions if one.started is None and not one.lost]:
        for session in waiting:
            session.flush()
        _await_news(waiting, signals)
        for session in waiting:
            news += [(session, frame) for frame in session.receive()]
        for number in signals.take():
            if number not in (signals.SUSPEND, signals.NOTICE):
                raise Interrupted(number)
        if time.monotonic() > deadline and is_over_ssh:
            for session in waiting:
                session.give_up(f"it did not answer within {_ANSWER_S:g} s")
        elif time.monotonic() > deadline:
            names = ", ".join(session.host.name for session in waiting)
            raise LaunchError(
                f"the agents on {names} did not answer within {_ANSWER_S:g} s; if they "
                "are stopped (state T), continue them and attach again"
            )
    starts = [session.started for session in sessions if session.started is not None]
    if not starts:
        raise NoSuchJob("the job has just ended")
    reports = [report for session in sessions for report in reports_of(session)]
    reports.sort(key=lambda report: report[0])
    return Takeover(min(starts), reports, news, is_to_end)


def reports_of(session: AgentSession) -> list[tuple[float, Frame]]:
    """Return what an agent has reported before, each with the time of its arrival."""
    if session.started is None:
        return []
    return [
        (session.started + past.at_s, decode(past.frame, "an agent", AGENT_TO_DRIVER))
        for past in session.past
    ]


def check_ended(sessions: Sequence[AgentSession]) -> None:
    """Raise unless all agents of a job over SSH have ended for certain.

    Raises:
        LaunchError: Some agents cannot be reached.
    """
    until = time.monotonic() + _END_S
    for session in sessions:
        left_s = max(0.0, until - time.monotonic())
        if session.connection.wait(left_s) is None:
            raise LaunchError(
                f"no agent of the job can be reached: host '{session.host.name}': "
                f"{session.why_lost()}; try again"
            )


def _await_news(sessions: Sequence[AgentSession], signals: SignalWatch) -> None:
    poll = select.poll()
    poll.register(signals.fd, select.POLLIN)
    for session in sessions:
        poll.register(session.connection, select.POLLIN)
    poll.poll(_LOOK_S * 1000)


# Settings that concern the job, not the terminal of one driver.
_SHARED = (
    *("on_failure", "min_np", "elastic_timeout_s", "detached_limit_s"),
    *("link_timeout_s", "start_timeout_s", "failure_timeout_s"),
    *("ssh_port", "ssh_identity_file", "ssh_config"),
)
# Paths among them, which another driver may read in another folder.
_SSH_FILES = ("ssh_identity_file", "ssh_config")


def record_of(
    plan: LaunchPlan,
    config: LaunchConfig,
    sessions: Sequence[AgentSession],
    launcher: Launcher,
) -> RunningJob:
    """Return the record of a new job.

    Args:
        plan: The ranks of each host.
        config: Settings of the job.
        sessions: One for each host of the plan, in order, all ready.
        launcher: The launcher that has started the agents.
    """
    # The package imports the driver, to which its version belongs.
    from bfrun import __version__

    hosts = []
    for host, session in zip(plan.hosts, sessions, strict=True):
        ready = session.ready
        assert ready is not None
        hosts.append(
            HostRecord(
                name=host.host.name,
                socket=os.path.join(ready.folder, attach_server.NAME),
                guard_pid=ready.guard_pid,
                ranks=[asdict(spec.placement) for spec in host.processes],
                user=host.host.user,
                is_remote=not launcher.is_local(host.host),
                agent_pid=ready.agent_pid,
                python=ready.executable or "python3",
                machine_id=ready.machine_id,
            )
        )
    settings = {name: getattr(config, name) for name in _SHARED}
    for name in _SSH_FILES:
        if settings[name] is not None:
            settings[name] = os.path.abspath(os.path.expanduser(settings[name]))
    return RunningJob(
        name=config.job_name or secrets.token_hex(4),
        version=__version__,
        pid=os.getpid(),
        key=secrets.token_hex(32),
        started=time.time(),
        hosts=hosts,
        settings={**settings, "command": list(config.command)},
    )


def settings_of(record: RunningJob, config: LaunchConfig) -> LaunchConfig:
    """Return ``config`` with the settings that all drivers of the job share."""
    shared = {**record.settings, "command": tuple(record.settings["command"])}
    return replace(config, stdin=False, timeline_filename=None, **shared)


def plan_of(record: RunningJob) -> LaunchPlan:
    """Return the plan of a running job, without the commands of its ranks."""
    return LaunchPlan(
        tuple(
            HostPlan(
                index,
                _host_of(host),
                tuple(
                    ProcessSpec(Placement(**rank), index, (), "", {})
                    for rank in host.ranks
                ),
            )
            for index, host in enumerate(record.hosts)
        )
    )
