"""A ledger that one rank keeps for all ranks of a job."""

import threading
import time

import pytest
import torch

import bluecomm as bf
from bluecomm.data.dynamic.ledger import RecordLedger
from bluecomm.data.dynamic.ledger_service import ledger_service
from bluecomm.data.dynamic.member_cell import MemberCell, open_service
from bluecomm.elastic.group import current_group
from tests.support.deadlines import hear, say
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

LENGTH = 200


class Reader:
    """Leases records one after the other."""

    def __init__(self, name, length=LENGTH):
        self.cell = MemberCell(name, RecordLedger.begin(length).state)
        self.number = 0
        self.used = []

    def ask(self, **parts):
        self.number += 1
        return self.cell.call(
            {"holder": self.cell.holder, "number": self.number, **parts}
        )

    def leave(self):
        number = self.number + 1
        self.cell.tell({"holder": self.cell.holder, "number": number, "leaves": True})

    def read_all(self):
        finished = []
        while True:
            reply = self.ask(
                finished=finished,
                wants=True,
                batch_size=4,
                ranks=self.cell.ranks(),
                lost=self.cell.lost(),
            )
            assert not reply["refused"]
            finished = []
            if reply["granted"] is not None:
                finished = [reply["granted"]["id"]]
                for begin, end in reply["granted"]["intervals"]:
                    self.used += range(begin, end)
            if reply["is_over"]:
                return self.used


def read_passes():
    """Three passes; the ranks begin them at different times, and train meanwhile."""
    open_service()
    used = []
    for number in range(3):
        if bf.rank() == number % bf.size():
            time.sleep(0.05)
        reader = Reader(f"pass {number}")
        used.append(reader.read_all())
        state = reader.cell.ledger()
        assert state["done"] == [[0, LENGTH]]
        assert sum(one["counted"] for one in state["holders"].values()) == LENGTH
        bf.allreduce(torch.ones(1000))
    # A large state travels in several chunks.
    done = [[2 * i, 2 * i + 1] for i in range(2000)]
    cell = MemberCell("large", RecordLedger.begin(4000, done).state)
    request = {"holder": cell.holder, "number": 1, "wants": True, "batch_size": 2}
    reply = cell.call({**request, "ranks": bf.size()})
    bf.barrier()
    cell.tell({"holder": cell.holder, "number": 2, "leaves": True})
    assert not cell._service._answers
    return used, reply["granted"]["intervals"]


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (3, "shm"), (2, "tcp")])
def test_each_record_is_used_once(size, transport):
    results = run_ranks(size, read_passes, transport=transport)
    for number in range(3):
        records = [one for used, _ in results for one in used[number]]
        assert sorted(records) == list(range(LENGTH))
    granted = [tuple(map(tuple, intervals)) for _, intervals in results]
    assert len(set(granted)) == size


def call_beside_everything():
    """The ranks suspend, join and shut down while the service stands."""
    reader = Reader("pass")
    reader.ask()
    bf.suspend()
    threading.Timer(0.2, bf.resume).start()
    reader.ask()
    last = bf.join()
    assert 0 <= last < bf.size()
    return reader.read_all()


def test_the_service_stands_beside_other_calls():
    results = run_ranks(3, call_beside_everything)
    used = [record for records in results for record in records]
    assert sorted(used) == list(range(LENGTH))


def break_off():
    """The rank that keeps the ledger ends first."""
    reader = Reader("pass")
    for _ in range(1 + 5 * bf.rank()):
        reader.ask(wants=True, batch_size=4, ranks=bf.size())
    reader.leave()


def test_ranks_may_break_off_at_different_steps():
    run_ranks(3, break_off)


def fail(folder):
    """The server is suspended until the other rank has given up, and then lost."""
    reader = Reader("pass")
    reader.ask()
    bf.barrier()
    if bf.rank() == 0:
        bf.suspend()
        say(folder, "suspended")
        hear(folder, "given up")
        bf.resume()
        return
    hear(folder, "suspended")
    service = ledger_service(current_group())
    service.deadline_s = 0.1
    with pytest.raises(bf.CommunicationTimeout, match="rank 0, which keeps the ledger"):
        reader.ask()
    say(folder, "given up")
    service._on_lost(0, bf.PeerLostError("it has ended"))
    with pytest.raises(bf.PeerLostError, match="be reached any more: it has ended"):
        reader.ask()


def test_errors_name_the_rank_that_keeps_the_ledger(tmp_path):
    run_ranks(2, fail, tmp_path)
