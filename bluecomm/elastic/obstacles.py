"""Says why a rank cannot let newcomers in, or cannot let the job grow."""

from __future__ import annotations

import logging

import torch.distributed as dist

from bluecomm.optim import ownership
from bluecomm.runtime import current_communicator

_log = logging.getLogger("bluecomm")


def refuses_newcomers() -> bool:
    """Return whether this rank cannot let newcomers in, and log why."""
    return _log_refusal("lost ranks are not started again", obstacle())


def refuses_growth(size: int) -> bool:
    """Return whether this rank cannot go on with ``size`` ranks, and log why."""
    if not current_communicator().world.assignment.grows:
        return True
    what = f"the job does not grow to {size} ranks"
    return _log_refusal(what, obstacle_to_growth(size))


def _log_refusal(what: str, why: str) -> bool:
    """Log why something is refused, if it is; return whether it is."""
    if why:
        level = logging.INFO if current_communicator().rank else logging.WARNING
        _log.log(level, "elastic: %s: %s", what, why)
    return bool(why)


def obstacle() -> str:
    """Return why this rank cannot let newcomers in; empty if it can."""
    if not all(owner.admits_newcomers for owner in ownership.live_owners()):
        return (
            "an optimizer has an algorithm, or a process set, with which ranks cannot "
            "join yet"
        )
    if windows := current_communicator().windows:
        return f"windows exist: {', '.join(sorted(windows))}"
    if dist.is_available() and dist.is_initialized():
        return "torch.distributed has process groups"
    return ""


def obstacle_to_growth(size: int) -> str:
    """Return why this rank cannot go on with ``size`` ranks; empty if it can."""
    comm = current_communicator()
    if comm.machine_topology is not None and not comm.machine_topology.is_default:
        return "set_machine_topology was given a graph for one number of machines"
    topology = comm.topology
    if topology is not None and not topology.is_default:
        if topology.factory is None:
            return (
                "the topology is a graph for one number of ranks; pass set_topology a "
                "function, such as bf.RingGraph"
            )
        try:
            topology.factory(size)
        except Exception as error:
            return f"the function of set_topology fails for {size} ranks: {error}"
    owners = ownership.live_owners()
    return next(filter(None, (one.obstacle_to_growth(size) for one in owners)), "")
