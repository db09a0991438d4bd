"""Calls a training function again after losses."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from bluecomm.elastic.admission import admitting
from bluecomm.elastic.group import agree_after_error, survives_losses
from bluecomm.elastic.notice import is_stopping
from bluecomm.elastic.state import HostsUpdatedInterrupt, State
from bluecomm.errors import HorovodInternalError
from bluecomm.runtime import current_communicator

_log = logging.getLogger("bluecomm")

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_State = TypeVar("_State", bound=State)


def run(
    func: Callable[Concatenate[_State, _Parameters], _Result],
) -> Callable[Concatenate[_State, _Parameters], _Result]:
    """Make a training function go on after changes of the ranks that train together.

    The ranks' states are made equal first (``state.sync()``), then the function is
    called. It is called again, after ``state.on_reset()``,

    - after a ``HostsUpdatedInterrupt``, which a commit raises on all ranks that are
      left, and which undoes nothing;
    - after a ``HorovodInternalError``: the ranks go back to their last commit
      (``state.restore()``), and then all take over the newest of these commits.

    Newcomers (``bfrun --respawn``) do not take part in the first ``sync``. They take
    over the state of another rank at a commit of the other ranks, which raises a
    ``HostsUpdatedInterrupt`` there, too.

    In a job that does not survive losses, a ``HorovodInternalError`` is raised: bfrun
    then ends the job, and torchrun starts all ranks again. In other jobs it is raised
    if, since the last one, no rank has gone and this rank has made no commit.

    Args:
        func: Function whose first argument is a ``State``.

    Returns:
        A function with the same arguments and the same result.
    """

    @functools.wraps(func)
    def wrapper(
        state: _State, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result:
        overcome: tuple[int, int] | None = None
        with admitting(state) as has_joined:
            skips_sync = has_joined
            if has_joined:
                state.on_reset()
            while True:
                try:
                    if not skips_sync:
                        state.sync()
                    result = func(state, *args, **kwargs)
                    break
                except HostsUpdatedInterrupt as interrupt:
                    skips_sync = interrupt.skip_sync
                except HorovodInternalError as error:
                    progress = state.commits, _number_gone()
                    if not _may_retry() or progress == overcome:
                        raise
                    overcome = progress
                    _log.warning("elastic: going back to the last commit: %s", error)
                    state.restore()
                    if survives_losses():
                        agree_after_error()
                    skips_sync = False
                state.on_reset()
        if not is_stopping():
            state.on_finish()
        return result

    return wrapper


def _may_retry() -> bool:
    """Return whether the ranks that are left can go on, or there is only one."""
    return survives_losses() or current_communicator().size == 1


def _number_gone() -> int:
    return len(current_communicator().world.members.gone)
