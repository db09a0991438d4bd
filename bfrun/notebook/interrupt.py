"""Interrupts the engines that are busy, wherever they run."""

from __future__ import annotations

import signal
import time

from bfrun.notebook.clients import client_of
from bfrun.notebook.profile import Profile

_ANSWER_S = 0.5
_LOOK_S = 0.02


def interrupt_hanged_processes(profile: str = "bluefog") -> list[int]:
    """Interrupt, as Ctrl-C would, the engines that do not answer.

    What an engine is doing then ends with ``KeyboardInterrupt``, also when it waits
    for another rank in an operation of bluecomm.

    Args:
        profile: IPython profile of the job.

    Returns:
        The engines that were interrupted, which are ranks, too.

    Raises:
        LaunchError: No job of this profile is running.
    """
    with client_of(Profile(profile)) as client:
        answers = {rank: client[rank].apply_async(int) for rank in sorted(client.ids)}
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            if all(answer.ready() for answer in answers.values()):
                break
            time.sleep(_LOOK_S)
        busy = [rank for rank, answer in answers.items() if not answer.ready()]
        if busy:
            client.send_signal(signal.SIGINT, targets=busy, block=True)
        return busy
