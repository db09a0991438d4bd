"""Says which calls are released together, and how to make them in a smaller epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bluecomm.runtime.call import FAREWELL, Call
from bluecomm.runtime.parameters import parameters

if TYPE_CHECKING:
    from bluecomm._native import Parameters

_ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})
# Their arguments have a part for each member.
_DIVIDED = frozenset({"alltoall", "reducescatter", "scatter"})
# The kinds that are released together and repeated.
COVERED = frozenset({"allgather", "allreduce", "barrier"}) | _ROOTED | _DIVIDED
# The kinds whose calls in place overwrite the input from which they are repeated. A
# broadcast overwrites only inputs that nobody needs.
OVERWRITING = COVERED - {"broadcast"}
# Operations between neighbors, which on the host go on without lost ranks or fail where
# they need them. Through NCCL they need all members.
OF_NEIGHBORS = frozenset({"neighbor_allgather", "neighbor_allreduce", "pair_gossip"})


def is_covered(made: Call[Any]) -> bool:
    """Return whether, after a loss, all members repeat a call or it fails on all.

    Calls between neighbors are, if they go through NCCL.
    """
    given = made.parameters
    through_nccl = made.tickets is not None or made.precedes_ticket
    is_of_neighbors = made.kind in OF_NEIGHBORS and through_nccl
    return (
        (made.kind in COVERED or is_of_neighbors)
        and made.name != FAREWELL
        and (given is None or not given.local_only)
    )


def why_impossible(
    made: Call[Any],
    given: Parameters | None,
    ranks: Sequence[int],
    gone: Collection[int],
) -> str:
    """Return why a call cannot be made without lost ranks; "" if it can.

    Args:
        made: The call.
        given: Its parameters, with members numbered as in ``ranks``.
        ranks: The members of the first epoch.
        gone: Ranks that have gone.
    """
    if not gone:
        return ""
    has_parts = made.has_parts or isinstance(made.destination, list)
    if made.kind in _DIVIDED or has_parts:
        return "its arguments have a part for each rank, lost ones too"
    if made.kind not in _ROOTED or given is None or made.any_root:
        return ""
    root = ranks[given.root]
    return f"its root, rank {root}, is lost" if root in gone else ""


def renumbered(
    made: Call[Any],
    given: Parameters | None,
    ranks: Sequence[int],
    left: Sequence[int],
) -> Parameters | None:
    """Return the parameters of a call with the members' numbers among those left.

    Member 0 takes the place of a root that is lost, and the own value that of a lost
    neighbor's.
    """
    if given is not None and made.kind in OF_NEIGHBORS:
        return _without_lost(given, ranks, left)
    if given is None or made.kind not in _ROOTED:
        return given
    root = ranks[given.root]
    return parameters(
        op=given.op,
        prescale=given.prescale,
        postscale=given.postscale,
        root=left.index(root) if root in left else 0,
    )


def _without_lost(
    given: Parameters, ranks: Sequence[int], left: Sequence[int]
) -> Parameters:
    number = {ranks.index(rank): i for i, rank in enumerate(left)}

    def numbered(pairs: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
        return tuple((number[i], weight) for i, weight in pairs if i in number)

    lost = sum(weight for i, weight in given.sources if i not in number)
    return parameters(
        self_weight=given.self_weight + lost,
        sources=numbered(given.sources),
        destinations=numbered(given.destinations),
    )
