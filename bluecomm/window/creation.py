"""Creating and freeing windows, which all ranks do together."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import torch

from bluecomm.device.values import values_on_host
from bluecomm.errors import MismatchError
from bluecomm.ops.barrier import barrier
from bluecomm.ops.objects import allgather_object
from bluecomm.ops.refusal import refusing
from bluecomm.ops.tensor import as_input
from bluecomm.ops.unfit_calls import first, refuse_unfit_calls
from bluecomm.runtime import Communicator, current_communicator
from bluecomm.topology import topology_digest
from bluecomm.window.device_values import DeviceValues
from bluecomm.window.live import LiveWindow, UnknownWindowError
from bluecomm.window.nccl_placement import NcclPlacement
from bluecomm.window.neighbors import window_neighbors
from bluecomm.window.placement import SlotPlacement, is_combined

__all__ = ["get_current_created_window_names", "win_create", "win_free"]

_log = logging.getLogger("bluecomm")

_FIRST = ("allgather", "")


@refuse_unfit_calls(first("win_create", _FIRST))
def win_create(
    tensor: torch.Tensor,
    name: str,
    zero_init: bool = False,
    *,
    timeout_s: float | None = None,
) -> bool:
    """Create a window: memory in which in-neighbors leave values for this rank.

    All ranks must call it, or all that are left in a job that survives losses.
    ``tensor`` becomes the own value of this rank, which ``win_update`` changes in
    place. The topology cannot be changed while windows exist.

    Args:
        tensor: Any shape; shape and type must be the same on all ranks. If it is on a
            device, the calls that read it wait until the device has computed it.
        name: Name of the window, the same on all ranks.
        zero_init: Whether the values of in-neighbors are zeros until their first put.
            Default: a copy of ``tensor``.
        timeout_s: Seconds until it fails. Default: the configured deadline.

    Returns:
        ``True``, or ``False`` with a log message if the name is taken.

    Raises:
        TypeError: The argument is not a tensor, its type is not supported, or the name
            is not a string.
        ValueError: The tensor is not dense, or on a device from which bluecomm cannot
            read, or the name is empty or cannot be encoded.
        MismatchError: The ranks gave different names, shapes or types, or have
            different topologies; the text names the ranks.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not call in time; the text names them.
    """
    comm = current_communicator()
    with refusing(comm, "win_create", None, _FIRST):
        value, word = as_input(tensor, "win_create", staged=True)
        _check_name(name)
        limit_s = comm.world.config.operation_timeout_s
        given, value = value, values_on_host(value, "win_create", limit_s)
    is_taken = name in comm.windows
    facts = {
        "name": name,
        "shape": tuple(value.shape),
        "dtype": word,
        "topology": _topology_of(comm),
        "use of the name": "taken" if is_taken else "free",
        "BLUECOMM_WINDOWS": comm.world.config.windows,
    }
    # A rank on which an earlier call failed has counted fewer calls than the others.
    placement = _placement(comm, given, name, is_taken)
    extra = comm.window_creations, placement.offer
    try:
        records = _compare(comm, "win_create", name, facts, timeout_s, extra)
    except BaseException:
        placement.withdraw()
        raise
    number = max(count for count, _ in records.values())
    if is_taken:
        _log.error(
            "win_create: a window %r exists already; call win_free for it first", name
        )
        return False
    comm.window_creations = number + 1
    offers = {rank: offer for rank, (_, offer) in records.items()}
    slots = placement.agree(name, offers, timeout_s)

    from bluecomm._native import Window

    sources, targets = window_neighbors(comm)
    native = Window(
        comm.world.engine,
        id=_identifier(name, number),
        name=name,
        rank=comm.rank,
        dtype=word,
        address=0 if slots else value.data_ptr(),
        nbytes=0 if slots else value.nbytes,
        nbytes_on_device=value.nbytes if slots else 0,
        in_neighbors=sources,
        out_neighbors=targets,
        zero_init=zero_init,
        ranks=comm.size if comm.world.members.survives_losses else 0,
        memory=comm.world.memory,
    )
    window = LiveWindow(name, comm, tensor, native)
    if slots:
        window.device = DeviceValues(
            native, comm.rank, slots, None if zero_init else given.clone()
        )
        window.show()
    limit_s = window.timeout_s("win_create", timeout_s)
    comm.windows[name] = window
    window.start(
        "win_create",
        lambda kept, keep: native.open(limit_s, kept, keep),
        [],
        timeout_s,
    ).wait()
    # All neighbors have created it, but mutexes may be requested from any rank.
    barrier(timeout_s=timeout_s)
    return True


@refuse_unfit_calls(first("win_free", _FIRST))
def win_free(name: str | None = None, *, timeout_s: float | None = None) -> bool:
    """Free a window, or all of them.

    All ranks must call it, or all that are left in a job that survives losses, and must
    have waited for all their requests to the window.

    Args:
        name: Name of the window. Default: all windows.
        timeout_s: Seconds until it fails. Default: the configured deadline.

    Returns:
        ``True``.

    Raises:
        KeyError: Some ranks have no window of that name; the text names them. The other
            ranks have freed theirs, which a failed ``win_create`` had left. The error
            is a ``ValueError``, too.
        ValueError: A request of some rank has not ended; nothing is freed.
        MismatchError: The ranks gave different names.
        PeerLostError: A rank is lost.
        CommunicationTimeout: Some ranks did not call in time; the text names them.
    """
    comm = current_communicator()
    names = sorted(comm.windows) if name is None else [name]
    with refusing(comm, "win_free", None, _FIRST):
        mine = [one for one in names if one in comm.windows]
        for one in mine:
            comm.windows[one].settle("win_free", timeout_s)
    busy = [one for one in mine if comm.windows[one].native.is_busy]
    facts = {"names": names}
    answers = _compare(comm, "win_free", name, facts, timeout_s, (mine, busy))
    for rank, (_, held) in answers.items():
        if held:
            raise ValueError(
                f"win_free on rank {comm.rank}: requests of rank {rank} to the windows "
                f"{held} are still under way; wait for their handles first"
            )
    freed = [comm.windows.pop(one) for one in mine]
    for window in freed:
        window.native.remove()
        window.unmap()
    # Ranks that have not arrived here may still write to this memory, so it is kept
    # until all have.
    comm.windows_in_doubt.extend(freed)
    barrier(timeout_s=timeout_s)
    for window in freed:
        comm.windows_in_doubt.remove(window)
        window.native.release_removed()
        window.free()
    lacking = [rank for rank, (theirs, _) in answers.items() if theirs != names]
    if lacking:
        raise UnknownWindowError(
            f"win_free on rank {comm.rank}: ranks {lacking} have no window {name!r}; "
            f"the others have freed it. Rank {comm.rank} has {sorted(comm.windows)}"
        )
    return True


def get_current_created_window_names() -> list[str]:
    """Return the names of all windows, sorted.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return sorted(current_communicator().windows)


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(
            f"win_create: name must be a string that is not empty, got {name!r}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"win_create: name {name!r} cannot be encoded as UTF-8"
        ) from None


def _topology_of(comm: Communicator) -> str:
    topology = comm.topology
    if topology is None or topology.is_default:
        return "none" if topology is None else "default"
    return topology_digest(topology.graph, is_weighted=topology.is_weighted).hex()


def _placement(
    comm: Communicator, tensor: torch.Tensor, name: str, is_taken: bool
) -> SlotPlacement | NcclPlacement:
    """Return this rank's offer of slots; it is empty if the window's name is taken."""
    if comm.world.config.windows == "nccl" and not is_taken:
        return NcclPlacement(comm, tensor, name, is_combined=is_combined(tensor))
    return SlotPlacement(comm, tensor, is_taken=is_taken)


def _identifier(name: str, number: int) -> int:
    digest = hashlib.blake2b(f"{number}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _compare(
    comm: Communicator,
    operation: str,
    name: str | None,
    facts: dict[str, Any],
    timeout_s: float | None,
    extra: object = None,
) -> dict[int, Any]:
    """Return the ``extra`` of each rank that is left, after comparing their facts.

    Raises:
        MismatchError: Some ranks have other facts; the text names them.
    """
    gathered = allgather_object(
        (comm.rank, facts, extra), comm.name_for(operation, None), timeout_s=timeout_s
    )
    records = {rank: (theirs, more) for rank, theirs, more in gathered}
    for fact, mine in facts.items():
        others = [r for r, (theirs, _) in records.items() if theirs[fact] != mine]
        if others:
            raise MismatchError.describe(
                f"ranks {others} gave another {fact} than rank {comm.rank}",
                operation=operation,
                name=name,
                rank=comm.rank,
                peers=others,
                expected=str(mine),
                got=str(records[others[0]][0][fact]),
                remedy="All ranks must call it with the same arguments.",
            )
    return {rank: more for rank, (_, more) in records.items()}
