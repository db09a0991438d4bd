"""Requests to the ledger, and its replies. Both can be written as JSON."""

from __future__ import annotations

from typing import TypedDict

from bluecomm.data.dynamic.intervals import Intervals


class _RequestHead(TypedDict):
    holder: str
    number: int


class LedgerRequest(_RequestHead, total=False):
    """A request of a rank; each part but the first two may be missing.

    Attributes:
        holder: Name of the rank as long as its process lives.
        number: Number of the request, from 1. A repeated request has the same number.
        finished: Leases whose records the rank has used.
        wants: Whether the rank asks for a lease.
        round: Number of the step for which it wants the lease. None if ranks may make
            different numbers of steps.
        ranks: Number of living ranks.
        batch_size: Records of a lease.
        lost: Holders that do not live any more.
        silent: Holders from which no request has come for too long, with the number of
            their last one.
        leaves: Whether this is the rank's last request, and all its leases return.
    """

    finished: list[int]
    wants: bool
    round: int | None
    ranks: int
    batch_size: int
    lost: list[str]
    silent: dict[str, int]
    leaves: bool


class Lease(TypedDict):
    """Records for one step of a rank.

    Attributes:
        id: Number of the lease; None if the records repeat, and do not count.
        round: Number of the step, or None.
        intervals: Positions in the order of the epoch; empty if the records repeat.
    """

    id: int | None
    round: int | None
    intervals: Intervals


class LedgerAnswer(TypedDict):
    """The part of a reply that is the same when a request is repeated.

    Attributes:
        granted: The lease, or None.
        refused: Leases that the rank reports as finished, but that had returned before.
            Their records count for other ranks.
    """

    granted: Lease | None
    refused: list[int]


class LedgerReply(LedgerAnswer):
    """The reply to a request.

    Attributes:
        is_over: Whether all records are done.
        changes: Number that grows with each lease that begins or ends.
        holding: Holders with leases, and the number of their last request.
    """

    is_over: bool
    changes: int
    holding: dict[str, int]
