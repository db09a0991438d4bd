"""Interrupts the engines that are busy, on any host."""

from __future__ import annotations

import signal
import time

from bfrun.notebook.clients import client_of
from bfrun.notebook.profile import Profile

# Seconds in which one more idle engine answers, also on a busy host.
_ANSWER_S = 3.0
_LOOK_S = 0.02


def interrupt_hanged_processes(profile: str = "bluefog") -> list[int]:
    """Interrupt the engines that do not answer, as Ctrl-C would.

    The running cell of such an engine ends with ``KeyboardInterrupt``, even if it waits
    for another rank in an operation of bluecomm.

    Args:
        profile: IPython profile of the job.

    Returns:
        The ranks of the interrupted engines.

    Raises:
        LaunchError: No job of this profile is running.
    """
    with client_of(Profile(profile)) as client:
        answers = {rank: client[rank].apply_async(int) for rank in sorted(client.ids)}
        waiting = set(answers)
        deadline = time.monotonic() + _ANSWER_S
        while waiting and time.monotonic() < deadline:
            if answered := {rank for rank in waiting if answers[rank].ready()}:
                waiting -= answered
                deadline = time.monotonic() + _ANSWER_S
            time.sleep(_LOOK_S)
        busy = [rank for rank, answer in answers.items() if not answer.ready()]
        if busy:
            client.send_signal(signal.SIGINT, targets=busy, block=True)
        return busy
