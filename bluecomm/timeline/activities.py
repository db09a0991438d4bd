"""Activities of the user's own, in the timeline."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator

from bluecomm.runtime import current_process

_log = logging.getLogger("bluecomm")


def timeline_start_activity(tensor_name: str, activity_name: str) -> bool:
    """Note in the timeline that an activity begins.

    Args:
        tensor_name: The row in which it is shown; activities of one row may lie in one
            another.
        activity_name: What it is.

    Returns:
        ``True``, or ``False`` when no timeline is made (the first time with an error in
        the log).

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: A name is not a string, or is empty.
    """
    _check("timeline_start_activity", tensor_name, activity_name)
    recorder = current_process().communicator.world.recorder
    if recorder is None:
        _complain()
        return False
    recorder.begin(activity_name, tensor_name)
    return True


def timeline_end_activity(tensor_name: str) -> bool:
    """Note in the timeline that the last activity begun for a row ends.

    Args:
        tensor_name: The row.

    Returns:
        As ``timeline_start_activity``.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: The name is not a string, or is empty.
    """
    _check("timeline_end_activity", tensor_name)
    recorder = current_process().communicator.world.recorder
    if recorder is None:
        _complain()
        return False
    recorder.end(tensor_name)
    return True


@contextlib.contextmanager
def timeline_context(tensor_name: str, activity_name: str) -> Iterator[None]:
    """Show what happens inside a ``with`` statement as an activity.

    Args:
        tensor_name: As in ``timeline_start_activity``.
        activity_name: As in ``timeline_start_activity``.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: A name is not a string, or is empty.
    """
    timeline_start_activity(tensor_name, activity_name)
    try:
        yield
    finally:
        timeline_end_activity(tensor_name)


def _check(function: str, *names: object) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{function}: names must be texts, got {name!r}")


@functools.cache
def _complain() -> None:
    """Say once that there is no timeline."""
    _log.error(
        "no timeline is made, so activities are not noted; start the script with "
        "bfrun --timeline-filename FILE, or set BLUECOMM_TIMELINE"
    )
