"""Short-lived connections to a running controller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from bfrun.errors import LaunchError
from bfrun.notebook.profile import Profile

_LOOK_S = 0.1
_HUB_LIMIT_S = 10.0


@contextlib.contextmanager
def client_of(profile: Profile, limit_s: float = _HUB_LIMIT_S) -> Iterator[Any]:
    """Connect to the controller of a profile, and disconnect at the end.

    Raises:
        LaunchError: No job runs, or the controller does not answer in ``limit_s``.
    """
    import ipyparallel

    if not profile.client_file.exists():
        raise LaunchError(
            f"no job of profile '{profile.name}' is running; start one with: ibfrun "
            "start -np N"
        )
    try:
        client = ipyparallel.Client(str(profile.client_file), timeout=limit_s)
    except TimeoutError as error:
        raise LaunchError(
            f"the controller of profile '{profile.name}' does not answer: {error}"
        ) from error
    try:
        yield client
    finally:
        client.close()


def await_engines(
    profile: Profile, count: int, deadline: float, alive: Callable[[], bool]
) -> set[int]:
    """Wait until engines 0 to ``count - 1`` have registered.

    Args:
        profile: Profile of the job.
        count: Number of engines of the job.
        deadline: Latest time to return, on the clock ``time.monotonic``.
        alive: Returns whether the job still runs.

    Returns:
        The engines that have registered.
    """
    with client_of(profile, max(1.0, deadline - time.monotonic())) as client:
        while alive() and time.monotonic() < deadline:
            if len(client.ids) == count:
                break
            time.sleep(_LOOK_S)
        return set(client.ids)
