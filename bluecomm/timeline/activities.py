"""Records the user's own activities in the timeline."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator

from bluecomm.runtime import current_process

_log = logging.getLogger("bluecomm")


def timeline_start_activity(tensor_name: str, activity_name: str) -> bool:
    """Record in the timeline that an activity begins.

    Args:
        tensor_name: The row that shows the activity; activities in one row may be
            nested.
        activity_name: Name of the activity.

    Returns:
        ``True``, or ``False`` if no timeline is recorded.

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
    """Record in the timeline that the last activity begun in a row ends.

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
    """Record the body of a ``with`` statement as an activity.

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
            raise TypeError(
                f"{function}: names must be non-empty strings, got {name!r}"
            )


@functools.cache
def _complain() -> None:
    """Log once that there is no timeline, which is usual for a script."""
    _log.info(
        "no timeline is recorded, so activities are lost; start the script with "
        "bfrun --timeline-filename FILE, or set BLUECOMM_TIMELINE"
    )
