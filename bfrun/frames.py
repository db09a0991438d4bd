"""Every control frame, with its sender, receiver, meaning and fields.

A control frame is a JSON object whose key "type" names its class here. ``decode``
refuses other objects. ``python -m bfrun.frames --table`` prints the table of
docs/control-plane.md.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Dict, Literal, NamedTuple, Tuple, Type  # noqa: UP035

from bfrun.errors import ProtocolError
from bfrun.structure import FieldError, Structure


class Route(NamedTuple):
    """The sender and the receiver of a frame."""

    sender: str
    receiver: str


DRIVER_TO_AGENT = Route("driver", "agent")
AGENT_TO_DRIVER = Route("agent", "driver")
# The agent passes these on, inside ToRanks and FromRank.
DRIVER_TO_RANK = Route("driver", "rank")
RANK_TO_DRIVER = Route("rank", "driver")
RANK_TO_AGENT = Route("rank", "agent")
AGENT_TO_RANK = Route("agent", "rank")
ROUTES = (
    *(DRIVER_TO_AGENT, AGENT_TO_DRIVER),
    *(RANK_TO_AGENT, AGENT_TO_RANK),
    *(RANK_TO_DRIVER, DRIVER_TO_RANK),
)

_ARTICLE = {"driver": "the driver", "agent": "an agent", "rank": "a rank"}
_REGISTRY: Dict[Tuple[Route, str], Type[Frame]] = {}  # noqa: UP006


class Frame(Structure):
    """Base of all frames. ``kind`` is the value of the key "type"."""

    kind = ""

    def __init_subclass__(cls, kind: str, routes: tuple[Route, ...]) -> None:
        super().__init_subclass__()
        cls.kind = kind
        for route in routes:
            _REGISTRY[route, kind] = cls

    def to_message(self) -> dict[str, Any]:
        """Return the frame as a JSON object."""
        return {"type": self.kind, **self.to_json()}


def decode(message: Mapping[str, Any], sender: str, *routes: Route) -> Frame:
    """Return the frame in a JSON object, ignoring unknown fields.

    Args:
        message: The object, which has text under "type".
        sender: Name of the sender for errors, such as ``the agent on node1``.
        routes: Routes whose frames the caller accepts.

    Raises:
        ProtocolError: No frame of these routes has this type, or a field is missing or
            has the wrong type.
    """
    kind = message["type"]
    for route in routes:
        frame = _REGISTRY.get((route, kind))
        if frame is not None:
            try:
                return frame.from_json(message)
            except FieldError as error:
                raise _refusal(f"{sender} sent an invalid '{kind}': {error}") from None
    senders = " or ".join(_ARTICLE[route.sender] for route in routes)
    receiver = _ARTICLE[routes[0].receiver]
    raise _refusal(
        f"{sender} sent the frame '{kind[:99]}', which {senders} never sends to "
        f"{receiver}"
    )


def _refusal(what: str) -> ProtocolError:
    return ProtocolError(
        f"{what}; install one version of bluecomm and bfrun on all hosts"
    )


# Parts of frames


class OutstandingOperation(Structure):
    """An operation that a rank has started and not finished."""

    name: str
    kind: str
    age_s: float
    waiting_for: list[int]
    wish: str
    blocking: bool


class ProcessState(Structure):
    """The state of a rank's process, as its agent sees it."""

    pid: int
    state: str
    cpu_s: float
    idle_s: float


class RankSnapshot(Structure):
    """The state of a rank and its operations, as its agent and the rank report them."""

    host: str
    pid: int
    state: str
    cpu_s: float
    idle_s: float
    ops: list[OutstandingOperation]


# Both ways between driver and agent


class Beat(Frame, kind="beat", routes=(DRIVER_TO_AGENT, AGENT_TO_DRIVER)):
    """Heartbeat, sent every second. ``--link-timeout`` limits the silence."""


# From an agent to a rank, or to its driver


class Welcome(Frame, kind="welcome", routes=(AGENT_TO_RANK,)):
    """Answers ``hello``. The agent adds ``socket_dir`` and ``machine``."""

    job: str
    epoch: int
    secret: str
    host: str
    addresses: list[str]
    rank: int
    size: int
    local_rank: int
    local_size: int
    machine_rank: int
    machine_size: int
    start_timeout_s: float
    failure_timeout_s: float
    trace: bool = False
    socket_dir: str = ""
    machine: str = ""


class Refused(Frame, kind="refused", routes=(AGENT_TO_RANK,)):
    """Answers ``hello`` if the process may not speak for the rank; then hangs up."""

    error: str


class TaskHeader(Frame, kind="task", routes=(AGENT_TO_RANK,)):
    """Answers ``fetch_task``: the call follows in this many ``task_part`` frames."""

    parts: int


class TaskPart(Frame, kind="task_part", routes=(DRIVER_TO_AGENT, AGENT_TO_RANK)):
    """A part of the pickled call of ``bfrun.run``, in base64."""

    data: str


# From a rank to its agent


class Hello(Frame, kind="hello", routes=(RANK_TO_AGENT, AGENT_TO_DRIVER)):
    """This process speaks for the rank. The agent passes it on to the driver."""

    rank: int
    pid: int


class FetchTask(Frame, kind="fetch_task", routes=(RANK_TO_AGENT,)):
    """Asks for the call of ``bfrun.run``. Sent instead of ``hello``."""

    rank: int


# From the driver to an agent


class RankCommand(Structure):
    """The command of one rank, which an agent starts."""

    rank: int
    argv: list[str]
    cwd: str
    env: dict[str, str]
    cpus: list[int]
    stdin: bool
    welcome: Welcome


class Start(Frame, kind="start", routes=(DRIVER_TO_AGENT,)):
    """Starts ranks of one host; a host with many ranks gets several such frames.

    The agent removes variables whose names begin with one of ``foreign_prefixes``.
    """

    job: str
    failure_timeout_s: float
    link_timeout_s: float
    foreign_prefixes: list[str]
    processes: list[RankCommand]


class ToRanks(Frame, kind="to_rank", routes=(DRIVER_TO_AGENT,)):
    """Passes a frame on to some ranks of a host, or to all if ``ranks`` is null."""

    frame: dict[str, Any]
    ranks: list[int] | None = None


class OutputShown(Frame, kind="ack", routes=(DRIVER_TO_AGENT,)):
    """The driver has shown this much of a rank's output, so it may print more."""

    rank: int
    nbytes: int


class StdinData(Frame, kind="stdin", routes=(DRIVER_TO_AGENT,)):
    """Standard input for rank 0. ``end`` closes it afterwards."""

    data: str
    end: bool = False


class SignalRanks(Frame, kind="signal", routes=(DRIVER_TO_AGENT,)):
    """Signals all processes of all ranks of a host."""

    signum: int


class Inspect(Frame, kind="inspect", routes=(DRIVER_TO_AGENT,)):
    """Asks for the state of the ranks' processes; ``inspection`` answers it."""

    id: int


class ReadClock(Frame, kind="clock", routes=(DRIVER_TO_AGENT,)):
    """Asks for the time on the agent's clock.

    Sent for timelines of several hosts: 5 times a second for 4 s, then every 2 s.
    """

    sent_ns: int


class Suspend(Frame, kind="suspend", routes=(DRIVER_TO_AGENT,)):
    """The driver is about to stop (Ctrl-Z), so it will be silent but is not lost."""


class Resume(Frame, kind="resume", routes=(DRIVER_TO_AGENT,)):
    """The driver runs again after ``suspend``."""


class EndRanks(Frame, kind="end", routes=(DRIVER_TO_AGENT,)):
    """Kills the rest of the ranks. ``ended`` follows after the last output."""


class DropOutput(Frame, kind="leave_output", routes=(DRIVER_TO_AGENT,)):
    """Tells the agent to drop the rest of the output, which nobody reads."""


# From an agent to the driver


class HostLimit(Structure):
    """A limit of a host on the number of ranks.

    Attributes:
        name: Name of the limit, and how to look at it.
        what: The limited resource.
        limit: Its value.
        used: How much of it is in use without any rank.
        per_rank: How much of it one rank needs at least.
    """

    name: str
    what: str
    limit: int
    used: int
    per_rank: int


class Ready(Frame, kind="ready", routes=(AGENT_TO_DRIVER,)):
    """First frame of an agent. ``free_port`` is for the users' MASTER_PORT."""

    agent_pid: int
    guard_pid: int
    hostname: str
    python: str
    executable: str
    free_port: int
    limits: list[HostLimit]


class RankStarted(Frame, kind="started", routes=(AGENT_TO_DRIVER,)):
    """The command of a rank runs as this process."""

    rank: int
    pid: int


class RankNotStarted(Frame, kind="start_failed", routes=(AGENT_TO_DRIVER,)):
    """The command of a rank could not be started."""

    rank: int
    error: str


class FromRank(Frame, kind="rank", routes=(AGENT_TO_DRIVER,)):
    """Passes on a frame that a rank has sent to the driver."""

    rank: int
    frame: dict[str, Any]


class FromRankRefused(Frame, kind="rank_refused", routes=(AGENT_TO_DRIVER,)):
    """A rank has sent a frame that is too large to be passed on."""

    rank: int
    frame_kind: str
    error: str


class RankStopped(Frame, kind="freeze", routes=(AGENT_TO_DRIVER,)):
    """A rank's process has been stopped (state T) for too long, or runs again."""

    event: Literal["frozen", "failed", "thawed"]
    rank: int
    pid: int
    seconds: float


class RankVanished(Frame, kind="vanished", routes=(AGENT_TO_DRIVER,)):
    """The process that spoke for a rank ended, but the rank's command still runs."""

    rank: int
    pid: int


class RankExited(Frame, kind="exited", routes=(AGENT_TO_DRIVER,)):
    """The command of a rank has ended.

    ``status`` is its exit code, or minus the number of a signal. ``oom`` is evidence of
    the out-of-memory killer.
    """

    rank: int
    pid: int
    status: int
    oom: str | None = None


class Inspection(Frame, kind="inspection", routes=(AGENT_TO_DRIVER,)):
    """Answers ``inspect``: the state of each process, by rank."""

    id: int
    ranks: dict[str, ProcessState]


class ClockReading(Frame, kind="clock", routes=(AGENT_TO_DRIVER,)):
    """Answers ``clock`` at once, with the times of arrival and of the answer."""

    sent_ns: int
    received_ns: int
    replied_ns: int


class Output(Frame, kind="output", routes=(AGENT_TO_DRIVER,)):
    """A piece of a rank's output. Other frames may overtake it."""

    rank: int
    stream: Literal["stdout", "stderr"]
    data: str
    nbytes: int


class OutputClosed(Frame, kind="closed", routes=(AGENT_TO_DRIVER,)):
    """A rank has ended, and all of its output has been sent."""

    rank: int


class StdinTaken(Frame, kind="stdin_taken", routes=(AGENT_TO_DRIVER,)):
    """Rank 0 has read this much of its standard input, so more may follow."""

    nbytes: int


class TracePiece(Frame, kind="trace", routes=(AGENT_TO_DRIVER,)):
    """At most 512 KiB of the trace of an ended rank, deflated, in base64.

    Sent while the connection is idle.
    """

    rank: int
    file: str
    data: str


class AgentEnded(Frame, kind="ended", routes=(AGENT_TO_DRIVER,)):
    """Last frame of an agent. ``left`` is the number of processes that still run."""

    left: int


# From a rank to the driver, by way of its agent


class Publish(Frame, kind="publish", routes=(RANK_TO_DRIVER,)):
    """The rank's record for one round of the rendezvous. Every rank publishes one."""

    round: int
    record: Any


class Goodbye(Frame, kind="goodbye", routes=(RANK_TO_DRIVER,)):
    """The rank has shut down cleanly, so its exit is not a failure."""


class Failing(Frame, kind="failing", routes=(RANK_TO_DRIVER,)):
    """An error has ended the rank's program; its process will exit with ``status``.

    ``deed`` is a phrase such as "raised KeyError"; ``peers`` are the lost ranks that
    the error names.
    """

    cause: str
    deed: str
    reason: str
    status: int
    peers: list[int]


class ThreadFailed(Frame, kind="thread_failed", routes=(RANK_TO_DRIVER,)):
    """An uncaught exception has ended a thread of the rank, but not its program."""

    thread: str
    error: str


class Stall(Frame, kind="stall", routes=(RANK_TO_DRIVER,)):
    """The rank has waited long in an operation, and asks what all ranks are doing."""

    op: str


class Pending(Frame, kind="pending", routes=(RANK_TO_DRIVER,)):
    """Answers ``query_pending``: the operations that the rank has outstanding."""

    id: int
    ops: list[OutstandingOperation]


class Result(Frame, kind="result", routes=(RANK_TO_DRIVER,)):
    """A part of the pickled result of the call of ``bfrun.run``, in base64."""

    data: str
    last: bool


# From the driver to ranks, by way of their agents


class RecordList(Frame, kind="table", routes=(DRIVER_TO_RANK,)):
    """Ends a round of the rendezvous, with the records of all ranks in order."""

    round: int
    records: list[Any]


class RecordsMissing(Frame, kind="missing", routes=(DRIVER_TO_RANK,)):
    """Ends a round of the rendezvous in which some ranks did not publish in time."""

    round: int
    ranks: list[int]
    text: str


class RankLost(Frame, kind="lost", routes=(DRIVER_TO_RANK,)):
    """A rank has failed. Operations that wait for it fail with ``text``."""

    rank: int
    host: str
    cause: str
    text: str


class RankFinished(Frame, kind="finished", routes=(DRIVER_TO_RANK,)):
    """A rank has ended without failing.

    ``cause`` and ``text`` are empty after ``goodbye``.
    """

    rank: int
    host: str
    cause: str = ""
    text: str = ""


class RankFrozen(Frame, kind="frozen", routes=(DRIVER_TO_RANK,)):
    """Warns that a rank's process has been stopped (state T) for 10 s."""

    rank: int
    host: str
    seconds: float
    text: str


class RankDamaged(Frame, kind="damaged", routes=(DRIVER_TO_RANK,)):
    """Warns that an exception has ended a thread of a rank that still runs."""

    rank: int
    host: str
    text: str


class QueryPending(Frame, kind="query_pending", routes=(DRIVER_TO_RANK,)):
    """Asks for the rank's outstanding operations; ``pending`` answers it."""

    id: int


class StallTable(Frame, kind="stall_report", routes=(DRIVER_TO_RANK,)):
    """Answers ``stall``: the state and the operations of every rank."""

    op: str
    ranks: dict[str, RankSnapshot]


def table() -> Iterator[str]:
    """Return the lines of a Markdown table of all frames."""
    yield "| frame | from, to | fields | meaning |"
    yield "|---|---|---|---|"
    routes: Dict[Type[Frame], list[Route]] = {}  # noqa: UP006
    for route, kind in sorted(_REGISTRY, key=lambda key: ROUTES.index(key[0])):
        routes.setdefault(_REGISTRY[route, kind], []).append(route)
    for frame, ways in routes.items():
        parties = "; ".join(", ".join(way) for way in ways)
        fields = ", ".join(f"`{name}`" for name in frame.fields()) or "-"
        meaning = " ".join((frame.__doc__ or "").split()).replace("``", "`")
        yield f"| `{frame.kind}` | {parties} | {fields} | {meaning} |"


if __name__ == "__main__":
    if sys.argv[1:] != ["--table"]:
        sys.exit("usage: python -m bfrun.frames --table")
    print("\n".join(table()))
