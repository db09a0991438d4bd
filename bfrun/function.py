"""``bfrun.run``: calls a Python function on every rank of a new job."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bfrun.config import LaunchConfig
from bfrun.driver.driver import judge_job
from bfrun.driver.report import Verdict
from bfrun.errors import JobFailed
from bfrun.hosts import Host, parse_hosts
from bfrun.launch.base import Launcher
from bfrun.plan import LaunchPlan
from bfrun.start import start
from bfrun.task import Task

# Imports the caller's bfrun, whether it is installed or not.
_PROGRAM = (
    f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); "
    "from bfrun.task import main; main()"
)


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int = 4,
    hosts: str | Sequence[Host] | None = None,
    **settings: Any,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` on ``np`` ranks and return their results.

    The function, its arguments and its results are pickled with cloudpickle, so
    closures and functions of a notebook work. The ranks' output is shown as ``bfrun``
    shows it.

    Args:
        fn: Function to call once on each rank. It must call ``bluecomm.init`` itself.
        args: Positional arguments, the same on all ranks.
        kwargs: Keyword arguments, the same on all ranks.
        np: Number of ranks.
        hosts: Text as for ``-H``, or a sequence of hosts. Default: this machine.
        **settings: More fields of ``bfrun.config.LaunchConfig``, such as
            ``ranks_per_machine=2`` or ``failure_timeout_s=30``.

    Returns:
        The results in rank order. With ``on_failure="continue"`` the result of a lost
        rank is ``None``.

    Raises:
        JobFailed: A rank failed. The error has the exit code and the report.
        LaunchError: The job could not start.
        TypeError: ``fn`` or ``np`` has the wrong type, a setting is unknown, or the
            call cannot be pickled.
        ValueError: ``np`` is less than 1.
    """
    if not callable(fn):
        raise TypeError(f"bfrun.run: fn must be a function, got {fn!r}")
    if isinstance(np, bool) or not isinstance(np, int):
        raise TypeError(f"bfrun.run: np must be an integer, got {np!r}")
    if np < 1:
        raise ValueError(f"bfrun.run: np must be at least 1, got {np}")
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    unknown = sorted(set(settings) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise TypeError(
            f"bfrun.run: unknown settings {unknown}; the settings are: {names}"
        )
    config = LaunchConfig(
        command=(sys.executable, "-c", _PROGRAM),
        world_size=np,
        hosts=parse_hosts(hosts) if isinstance(hosts, str) else tuple(hosts or ()),
        **settings,
    )
    task = Task(_pickle_call(fn, args, kwargs or {}))
    verdicts: list[Verdict] = []

    def judge(plan: LaunchPlan, launcher: Launcher, config: LaunchConfig) -> int:
        verdicts.append(judge_job(plan, launcher, config, task=task))
        return verdicts[0].exit_code

    start(config, judge)
    if verdicts[0].exit_code != 0:
        raise JobFailed(verdicts[0].exit_code, verdicts[0].report)
    lost = verdicts[0].lost
    return [None if rank in lost else _result(task, rank) for rank in range(np)]


def _pickle_call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        call = cloudpickle.dumps((fn, tuple(args), dict(kwargs)))
    except Exception as error:
        raise TypeError(
            f"bfrun.run: the call of {getattr(fn, '__name__', fn)} cannot be pickled: "
            f"{error}"
        ) from error
    # The ranks need the caller's path before they unpickle the call.
    return pickle.dumps((list(sys.path), call))


def _result(task: Task, rank: int) -> Any:
    data = task.result(rank)
    if data is None:
        raise JobFailed(
            1,
            f"bfrun.run: rank {rank} ended without a result (exit 0); the function "
            "must return instead of ending its process",
        )
    return pickle.loads(data)
