"""The errors of transactions that a loss, or perhaps one, has ended."""

from __future__ import annotations

from collections.abc import Sequence

from bfrun.wording import format_ranks
from bluecomm.errors import BluecommError, PeerLostError
from bluecomm.runtime.epochs.ledger import Key


def lost_error(key: Key, why: str, gone: Sequence[int], rank: int) -> PeerLostError:
    """Return the error of a transaction that the members that are left cannot make.

    Args:
        key: Name and number of the transaction.
        why: Why they cannot.
        gone: Ranks of the members that have gone.
        rank: This rank.
    """
    return PeerLostError.describe(
        f"it cannot be made among the ranks that are left, because {why}; gone: "
        f"{format_ranks(gone, noun=True) if gone else 'none'}",
        operation=key[0].split(".", 1)[0],
        name=key[0].split(".", 1)[-1],
        rank=rank,
        peers=gone,
        remedy="All ranks that are left raise this. The next call works",
    )


def advise_of_nccl(
    error: BluecommError, ranks: Sequence[int], rank: int, report_s: float
) -> None:
    """Tell in an error of NCCL that none of the ranks was found lost meanwhile.

    Args:
        error: The error, which gets the other ranks as peers.
        ranks: Ranks of the group in which NCCL has failed.
        rank: This rank.
        report_s: How long the error has waited for the decision about a loss.
    """
    error.peers = tuple(other for other in ranks if other != rank)
    error.advise(
        f"Within {report_s:g} s none of {format_ranks(ranks, noun=True)} was "
        "found lost. Perhaps the network that NCCL uses between them is "
        "broken; NCCL_DEBUG=INFO names its interfaces, and "
        "BLUECOMM_DEVICE_TRANSPORT=staged does without NCCL"
    )
