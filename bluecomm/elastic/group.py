"""The ranks among which a job goes on, as all of them know it.

Ranks learn of a loss at different times. So the group changes only where all ranks
change it together: at the commit on which they have agreed, or after an error that all
of them have raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from bfrun.wording import format_ranks
from bluecomm.errors import PeerLostError
from bluecomm.ops.allreduce import allreduce
from bluecomm.runtime import Communicator, current_communicator

_log = logging.getLogger("bluecomm")

# How long the ranks may take to decide that a rank lost by the engine has gone.
_REPORT_S = 10.0
_LOOK_S = 0.01

# The group of the current world, if that survives losses.
_group: Communicator | None = None
# Number of agreements after errors, the same on all ranks of a group.
_agreements = 0


def current_group() -> Communicator:
    """Return the ranks that train together, the same at one point of the program.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    everybody = current_communicator()
    if not everybody.world.members.survives_losses:
        return everybody
    if _group is None or _group.world is not everybody.world:
        # Its members change only here, while those of the world follow each loss.
        return _replace(range(everybody.world.size))
    return _group


def survives_losses() -> bool:
    """Return whether the job goes on when ranks are lost."""
    return current_communicator().world.members.survives_losses


def use_group(ranks: Sequence[int]) -> bool:
    """Go on among some ranks, and return whether that is a change.

    Collective: all of these ranks call it at one point of the program.
    """
    if tuple(ranks) == current_group().ranks:
        return False
    group = _replace(ranks)
    lowest = group.world.rank == group.ranks[0]
    _log.log(
        logging.WARNING if lowest else logging.INFO,
        "elastic: training goes on with %s",
        format_ranks(group.ranks, noun=True),
    )
    return True


def agree_after_error() -> None:
    """Agree with the other ranks that are left on the new group.

    Collective: all ranks that are left call it after an error that has interrupted
    their training. Further losses in the meantime only repeat the agreement.

    Raises:
        HorovodInternalError: The ranks have not agreed within the deadline.
    """
    global _agreements
    world = current_communicator().world
    members = world.members
    _agreements += 1
    while True:
        # All ranks learn of losses in the same order, so equal counts are equal ranks.
        gone = members.gone
        left = [rank for rank in range(world.size) if rank not in gone]
        owner = f"elastic.agreement.{_agreements}.{len(gone)}"
        try:
            allreduce(
                torch.zeros(1),
                name="elastic.agreement",
                process_set=Communicator(world, left, owner=owner),
            )
            break
        except PeerLostError:
            deadline = time.monotonic() + _REPORT_S
            while members.gone == gone:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_S)
    # Calls in the old group may have been made by some ranks only.
    _replace(left)


def begin_generation(left: Sequence[int]) -> None:
    """Go on in another world, among those of its ranks that are left.

    Collective; newcomers call it, too.
    """
    global _agreements
    _agreements = 0  # newcomers have not taken part in the earlier ones
    use_group(left)


def _replace(ranks: Sequence[int]) -> Communicator:
    global _group
    world = current_communicator().world
    if _group is not None and _group.world is world:
        _group.free()
    _group = Communicator(world, tuple(ranks), owner=f"elastic.{_agreements}")
    return _group
