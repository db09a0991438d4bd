"""Frames with many fields, for tests that look at a few of them."""

from __future__ import annotations

from typing import Any

from bfrun.frames.agent_to_rank import Welcome
from bfrun.frames.driver_to_agent import RankCommand
from bfrun.frames.parts import OutstandingOperation

_WELCOME = Welcome(
    job="ab",
    epoch=0,
    secret="cd",
    host="a",
    addresses=["127.0.0.1"],
    rank=0,
    size=4,
    local_rank=0,
    local_size=4,
    machine_rank=0,
    machine_size=1,
    start_timeout_s=300.0,
    failure_timeout_s=120.0,
)


def make_welcome(**changes: Any) -> Welcome:
    """Return a welcome to one of four ranks."""
    return _WELCOME.replace(**changes)


def make_command(argv: list[str], cwd: str = "/", **changes: Any) -> RankCommand:
    """Return the command of rank 0."""
    command = RankCommand(
        rank=0, argv=argv, cwd=cwd, env={}, cpus=[], stdin=False, welcome=_WELCOME
    )
    return command.replace(**changes)


def make_operation(**changes: Any) -> OutstandingOperation:
    """Return an allreduce that waits for rank 1."""
    operation = OutstandingOperation(
        name="x",
        kind="allreduce",
        group=1,
        age_s=20.0,
        waiting_for=[1],
        wish="",
        blocking=True,
    )
    return operation.replace(**changes)
