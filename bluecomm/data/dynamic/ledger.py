"""The ledger of an epoch: which records are done, leased and free.

It has no clock and does no input or output: its next state follows from a request
alone. So each copy that gets the same requests is in the same state.
"""

from __future__ import annotations

import copy
from typing import TypedDict

from bluecomm.data.dynamic.exchange import (
    Lease,
    LedgerAnswer,
    LedgerReply,
    LedgerRequest,
)
from bluecomm.data.dynamic.intervals import Intervals, complement, count, take, union


class HolderState(TypedDict):
    """A rank, as the ledger knows it.

    Attributes:
        number: Number of its last request.
        answer: The answer to it.
        counted: Number of records that the rank has finished.
        round: Number of its first step for which it has got nothing yet.
        has_left: Whether it has made its last request.
        is_silent: Whether its leases have returned because it has been silent.
    """

    number: int
    answer: LedgerAnswer
    counted: int
    round: int
    has_left: bool
    is_silent: bool


class HeldLease(TypedDict):
    """A lease that has neither ended nor returned."""

    holder: str
    intervals: Intervals


class LedgerState(TypedDict):
    """A ledger, which can be written as JSON.

    Attributes:
        epoch: Number of the epoch.
        length: Number of records of the epoch.
        done: Positions that count as used.
        free: Positions that nobody has leased.
        leases: Number of the lease to the lease.
        given: Number of leases that were ever granted.
        ended: Number of leases that have ended or returned.
        rounds: Number of steps that all ranks make, as far as is known.
        holders: Name to rank.
    """

    epoch: int
    length: int
    done: Intervals
    free: Intervals
    leases: dict[str, HeldLease]
    given: int
    ended: int
    rounds: int
    holders: dict[str, HolderState]


class RecordLedger:
    """Grants leases on the records of an epoch, and counts each record once.

    * A lease ends when its holder has finished it, and its records are done. It returns
      if its holder is lost, silent, or leaves; then its records are free again, and
      the holder's later message that it has finished is refused. So each record is
      counted exactly once, and used at least once.
    * If ranks make steps of their own, a rank that holds nothing gets a lease as long
      as records are free. It may hold ``(free * share / batch_size + 1) // 2`` more,
      where ``share`` is its part in the records that all ranks have finished: so a slow
      rank keeps nothing that the others could finish earlier.
    * If all ranks make equally many steps, each lease belongs to a step. The records of
      earlier steps are kept for ranks that have not asked for them yet, and the last
      records are divided among the ranks of the last step. A rank for which nothing is
      left in a step that another rank makes gets a repeat.

    Args:
        state: The state, which the ledger changes from now on.
    """

    def __init__(self, state: LedgerState) -> None:
        self.state = state

    @classmethod
    def begin(
        cls, length: int, done: Intervals | None = None, epoch: int = 0
    ) -> RecordLedger:
        """Return the ledger of an epoch.

        Args:
            length: Number of records.
            done: Positions that earlier parts of the epoch have used.
            epoch: Number of the epoch.
        """
        known = union(done or [])
        return cls(
            {
                "epoch": epoch,
                "length": length,
                "done": known,
                "free": complement(known, length),
                "leases": {},
                "given": 0,
                "ended": 0,
                "rounds": 0,
                "holders": {},
            }
        )

    @property
    def is_over(self) -> bool:
        """Whether all records are done."""
        return count(self.state["done"]) == self.state["length"]

    @property
    def silent(self) -> set[str]:
        """The holders that have been silent, and have not made a request since."""
        holders = self.state["holders"].items()
        return {name for name, holder in holders if holder["is_silent"]}

    def apply(self, request: LedgerRequest) -> LedgerReply:
        """Carry out a request, and return the reply.

        A request with the number of the rank's last one, or a lower one, changes
        nothing, and its answer is that to the last one.
        """
        holder = self._holder(request["holder"])
        if request["number"] > holder["number"]:
            holder["number"], holder["is_silent"] = request["number"], False
            refused = self._finish(request)
            self._return_leases(request)
            granted = self._grant(request)
            holder["answer"] = {"granted": granted, "refused": refused}
        return self._reply(holder["answer"])

    def _holder(self, name: str) -> HolderState:
        fresh: HolderState = {
            "number": 0,
            "answer": {"granted": None, "refused": []},
            "counted": 0,
            "round": 0,
            "has_left": False,
            "is_silent": False,
        }
        return self.state["holders"].setdefault(name, fresh)

    def _finish(self, request: LedgerRequest) -> list[int]:
        """End leases, and return those that the rank does not hold any more."""
        state = self.state
        refused: list[int] = []
        for number in request.get("finished", []):
            lease = state["leases"].get(str(number))
            if lease is None or lease["holder"] != request["holder"]:
                refused.append(number)
                continue
            del state["leases"][str(number)]
            state["ended"] += 1
            state["done"] = union(state["done"], lease["intervals"])
            self._holder(lease["holder"])["counted"] += count(lease["intervals"])
        return refused

    def _return_leases(self, request: LedgerRequest) -> None:
        """Free the records of ranks that will not finish them."""
        state = self.state
        gone = set(request.get("lost", []))
        for name, number in request.get("silent", {}).items():
            # A later request than that which the observer knows is a sign of life.
            known = state["holders"].get(name)
            if known is not None and known["number"] == number:
                known["is_silent"] = True
                gone.add(name)
        if request.get("leaves"):
            self._holder(request["holder"])["has_left"] = True
            gone.add(request["holder"])
        for key, lease in list(state["leases"].items()):
            if lease["holder"] in gone:
                del state["leases"][key]
                state["ended"] += 1
                state["free"] = union(state["free"], lease["intervals"])

    def _grant(self, request: LedgerRequest) -> Lease | None:
        if not request.get("wants"):
            return None
        number = request.get("round")
        if number is None:
            return self._grant_at_will(request)
        return self._grant_in_round(request, number)

    def _grant_at_will(self, request: LedgerRequest) -> Lease | None:
        """Grant a lease for a step of the rank's own, unless it holds enough."""
        state, name, size = self.state, request["holder"], request["batch_size"]
        total = sum(each["counted"] for each in state["holders"].values())
        part = self._holder(name)["counted"] + size
        whole = total + request["ranks"] * size
        ahead = (count(state["free"]) * part // (size * whole) + 1) // 2
        held = sum(each["holder"] == name for each in state["leases"].values())
        return self._lease(name, size, None) if held <= ahead else None

    def _grant_in_round(self, request: LedgerRequest, number: int) -> Lease | None:
        """Grant a lease for a step of all ranks, or a repeat if the others make it.

        The rank that is behind all others finds nothing reserved, so that it gets on,
        and then those that wait for it.
        """
        state, name, size = self.state, request["holder"], request["batch_size"]
        others = self._rounds_of_others(request)
        reserved = size * sum(max(number - each, 0) for each in others)
        open_ranks = 1 + sum(each <= number for each in others)
        available = count(state["free"]) - reserved
        lease = None
        if available > 0:
            lease = self._lease(name, min(size, -(-available // open_ranks)), number)
            state["rounds"] = max(state["rounds"], number + 1)
        elif number < state["rounds"]:
            lease = Lease(id=None, round=number, intervals=[])
        if lease is not None:
            self._holder(name)["round"] = number + 1
        return lease

    def _rounds_of_others(self, request: LedgerRequest) -> list[int]:
        """Return the next step of each other rank that goes on making steps."""
        lost = request.get("lost", [])
        left = 0
        known = []
        for name, holder in self.state["holders"].items():
            if name == request["holder"] or name in lost:
                continue
            if holder["has_left"]:
                left += 1
            else:
                known.append(holder["round"])
        unknown = request["ranks"] - 1 - left - len(known)
        return known + [0] * max(unknown, 0)

    def _lease(self, name: str, size: int, number: int | None) -> Lease | None:
        intervals = take(self.state["free"], size)
        if not intervals:
            return None
        self.state["given"] += 1
        identity = self.state["given"]
        self.state["leases"][str(identity)] = {"holder": name, "intervals": intervals}
        return Lease(id=identity, round=number, intervals=copy.deepcopy(intervals))

    def _reply(self, answer: LedgerAnswer) -> LedgerReply:
        state = self.state
        holding = {each["holder"] for each in state["leases"].values()}
        return {
            **copy.deepcopy(answer),
            "is_over": self.is_over,
            "changes": state["given"] + state["ended"],
            "holding": {
                name: state["holders"][name]["number"] for name in sorted(holding)
            },
        }
