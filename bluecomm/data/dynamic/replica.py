"""One rank's part in keeping the ledgers, without communication.

docs/dynamic-partition.md has the messages and the states. The living ranks know in
which order ranks have gone. The number of those is the ledger view, *view* for short.
The lowest rank that is left is its ledger server (*server*), and the next one its
ledger backup (*backup*).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Sequence

from bluecomm.data.dynamic.exchange import LedgerReply, LedgerRequest
from bluecomm.data.dynamic.ledger import LedgerState, RecordLedger
from bluecomm.data.dynamic.messages import (
    Backup,
    Collect,
    Collected,
    Confirm,
    Copy,
    LedgerCall,
    Message,
    Over,
    Reply,
)

# Number of ledgers that are kept: those that have changed last. A rank that is so many
# passes behind the others would begin anew with a ledger that they have finished.
_MOST_LEDGERS = 100


@dataclasses.dataclass
class _Kept:
    """A ledger, as this rank knows it.

    Attributes:
        version: Number of its changes.
        ledger: The ledger; that of a server may be ahead of all copies.
        answers: Answers of the server that wait until the backup has the copy.
        is_told: Whether the server has told everybody that it is over.
    """

    version: int
    ledger: RecordLedger
    answers: dict[int, Reply] = dataclasses.field(default_factory=dict)
    is_told: bool = False

    @property
    def copy(self) -> Copy:
        """The state, which the ledger goes on changing."""
        return Copy(self.version, self.ledger.state)


class Replica:
    """Asks the server, and is the server or the backup while it is its turn.

    Not thread-safe. It never waits: messages and losses change its state, and it sends
    messages in turn. Lost messages only delay it, because ranks repeat their calls.

    Args:
        rank: This rank.
        ranks: All ranks, ascending.
        send: Sends a message to another rank; may lose it.
        answer: Gets the name of a ledger and the reply to this rank's call.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        send: Callable[[int, Message], None],
        answer: Callable[[str, LedgerReply], None],
    ) -> None:
        self._rank = rank
        self._ranks = tuple(ranks)
        self._send = send
        self._answer = answer
        self._gone: frozenset[int] = frozenset()
        # Messages of servers of earlier views are ignored.
        self._promised = 0
        self._kept: dict[str, _Kept] = {}
        # This rank's calls without a reply, by ledger.
        self._own: dict[str, LedgerCall] = {}
        # Calls that the server has not carried out yet, by ledger and rank.
        self._waiting: dict[str, dict[int, LedgerCall]] = {}
        # Ranks whose copies a new server awaits.
        self._awaited: set[int] = set()

    # -- the view ---------------------------------------------------------------------

    @property
    def living(self) -> list[int]:
        """The ranks that have not gone."""
        return [rank for rank in self._ranks if rank not in self._gone]

    @property
    def server(self) -> int:
        """The rank that keeps the ledgers."""
        return self.living[0]

    @property
    def _backup(self) -> int | None:
        """The rank that gets the server's copies."""
        _, *others = self.living
        return others[0] if others else None

    @property
    def _view(self) -> int:
        return len(self._gone)

    @property
    def _serves(self) -> bool:
        return self.server == self._rank and not self._awaited

    def lose(self, gone: Collection[int]) -> None:
        """Begin the view without the ranks that have gone, all of them so far."""
        lost = {*gone} - self._gone
        if not lost:
            return
        before, backup, served = self.server, self._backup, self._serves
        self._gone = self._gone | lost
        if self.server == self._rank:
            if before == self._rank:
                self._awaited -= lost
            else:
                self._awaited = {*self.living} - {self._rank}
                self._collect()
            if self._serves and not (served and backup == self._backup):
                self._take_over()
        if self.server != before:
            for call in list(self._own.values()):
                self._dispatch(call)

    def _collect(self) -> None:
        for rank in self._awaited:
            self._send(rank, Collect(self._view))

    def _take_over(self) -> None:
        """Give the backup of this view all copies, then serve."""
        for name, kept in list(self._kept.items()):
            self._commit(name, kept)
        for name in list(self._waiting):
            self._serve(name)

    # -- asking -----------------------------------------------------------------------

    def ask(self, name: str, request: LedgerRequest, begin: LedgerState) -> None:
        """Ask the server of a ledger. The call before must have been answered.

        Args:
            name: Name of the ledger.
            request: The request.
            begin: The state with which the ledger begins, if nobody knows it.
        """
        first = None if name in self._kept else Copy(0, begin)
        self._own[name] = LedgerCall(name, request, first)
        if not self._answer_if_over(name):
            self._dispatch(self._own[name])

    def repeat(self, name: str, begin: LedgerState) -> None:
        """Ask again, because the reply has not come; a message may have been lost."""
        if self._awaited:
            self._collect()
        if (call := self._own.get(name)) is not None:
            self._own[name] = dataclasses.replace(call, begin=self.newest(name, begin))
            self._dispatch(self._own[name])

    def forget(self, name: str) -> None:
        """Await no reply of a ledger any more."""
        self._own.pop(name, None)

    def newest(self, name: str, begin: LedgerState) -> Copy:
        """Return the newest state that this rank knows."""
        kept = self._kept.get(name)
        return Copy(0, begin) if kept is None else copy.deepcopy(kept.copy)

    def _dispatch(self, call: LedgerCall) -> None:
        if self.server == self._rank:
            self._take_call(self._rank, call)
        else:
            self._send(self.server, call)

    def _answer_if_over(self, name: str) -> bool:
        """Answer this rank's call without the server if all records are done."""
        kept, call = self._kept.get(name), self._own.get(name)
        if kept is None or call is None or not kept.ledger.is_over:
            return False
        if kept.answers:  # the copy is on its way
            return False
        del self._own[name]
        self._answer(name, _apply_to_copy(kept, call))
        return True

    # -- messages ---------------------------------------------------------------------

    def take(self, source: int, message: Message) -> None:
        """Act on a message of another rank."""
        if source in self._gone:
            return
        if isinstance(message, LedgerCall):
            self._take_call(source, message)
        elif isinstance(message, Confirm):
            self._take_confirm(source, message)
        elif isinstance(message, Collected):
            self._take_collected(source, message)
        elif message.view < self._promised:
            return  # a later server has this rank's copies already
        elif isinstance(message, Collect):
            self._promised = message.view
            copies = {name: kept.copy for name, kept in self._kept.items()}
            self._send(source, Collected(copies))
        elif isinstance(message, Backup):
            self._keep(message.ledger, message.copy)
            self._send(source, Confirm(message.ledger, message.copy.version))
        elif isinstance(message, Over):
            self._keep(message.ledger, message.copy)
            self._answer_if_over(message.ledger)
        else:
            self._take_reply(message)

    def _take_reply(self, message: Reply) -> None:
        self._keep(message.ledger, message.copy)
        call = self._own.get(message.ledger)
        if call is not None and call.request["number"] == message.number:
            del self._own[message.ledger]
            self._answer(message.ledger, message.reply)

    def _keep(self, name: str, theirs: Copy) -> None:
        """Keep a copy, if it is the newest one."""
        kept = self._kept.get(name)
        if kept is None:
            self._open(name, theirs)
        elif theirs.version > kept.version:
            kept.version, kept.ledger = theirs.version, RecordLedger(theirs.state)
            self._note_change(name)

    def _open(self, name: str, first: Copy) -> _Kept:
        kept = _Kept(first.version, RecordLedger(copy.deepcopy(first.state)))
        self._kept[name] = kept
        while len(self._kept) > _MOST_LEDGERS:
            del self._kept[next(iter(self._kept))]
        return kept

    def _note_change(self, name: str) -> None:
        """Let a ledger be the last one to be dropped."""
        self._kept[name] = self._kept.pop(name)

    # -- serving ----------------------------------------------------------------------

    def _take_call(self, source: int, call: LedgerCall) -> None:
        kept, number = self._kept.get(call.ledger), call.request["number"]
        waiting = self._waiting.setdefault(call.ledger, {})
        before = waiting.get(source)
        answer = None if kept is None else kept.answers.get(source)
        is_answered = answer is not None and answer.number == number
        is_repeat = before is not None and before.request["number"] == number
        if kept is not None and kept.answers and (is_answered or is_repeat):
            self._commit(call.ledger, kept)  # the copy may have been lost
        if not is_answered:
            waiting[source] = call
            self._serve(call.ledger)

    def _serve(self, name: str) -> None:
        """Carry out the calls that wait, unless a copy is on its way.

        Together they need one copy, so a slow backup delays each call only once.
        """
        kept = self._kept.get(name)
        calls = self._waiting.get(name)
        if not calls or not self._serves or (kept is not None and kept.answers):
            return
        if kept is None:
            begins = [call.begin for call in calls.values() if call.begin is not None]
            if not begins:
                return  # repeats of these calls have one
            kept = self._open(name, max(begins, key=lambda one: one.version))
        del self._waiting[name]
        was_over = kept.ledger.is_over
        replies: dict[int, tuple[int, LedgerReply]] = {}
        for rank, call in calls.items():
            number = call.request["number"]
            if was_over:
                replies[rank] = number, _apply_to_copy(kept, call)
            else:
                replies[rank] = number, kept.ledger.apply(call.request)
                kept.version += 1
        self._note_change(name)
        kept.answers = {
            rank: Reply(self._view, name, number, reply, kept.copy)
            for rank, (number, reply) in replies.items()
        }
        if was_over:
            self._release(name, kept)
        else:
            self._commit(name, kept)

    def _commit(self, name: str, kept: _Kept) -> None:
        """Give the backup a copy; the answers follow once it has it."""
        if self._backup is None:
            self._release(name, kept)
        else:
            self._send(self._backup, Backup(self._view, name, kept.copy))

    def _take_confirm(self, source: int, message: Confirm) -> None:
        kept = self._kept.get(message.ledger)
        is_newest = kept is not None and message.version == kept.version
        if kept is not None and is_newest and source == self._backup and self._serves:
            self._release(message.ledger, kept)
            self._serve(message.ledger)

    def _release(self, name: str, kept: _Kept) -> None:
        """Send the answers whose copy the backup has."""
        answers, kept.answers = kept.answers, {}
        if kept.ledger.is_over and not kept.is_told:
            kept.is_told = True
            for rank in self.living:
                if rank != self._rank:
                    self._send(rank, Over(self._view, name, kept.copy))
        for rank, answer in answers.items():
            if rank != self._rank:
                self._send(rank, answer)
        if self._rank in answers:
            self._take_reply(answers[self._rank])

    def _take_collected(self, source: int, message: Collected) -> None:
        if source not in self._awaited:
            return
        for name, theirs in message.copies.items():
            self._keep(name, theirs)
        self._awaited.discard(source)
        if self._serves:
            self._take_over()


def _apply_to_copy(kept: _Kept, call: LedgerCall) -> LedgerReply:
    """Return the answer of a ledger that is over, and does not change any more."""
    return RecordLedger(copy.deepcopy(kept.ledger.state)).apply(call.request)
