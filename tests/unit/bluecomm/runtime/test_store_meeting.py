"""How the ranks of one start meet in a store, and ignore those of earlier starts."""

import json
import stat
import threading
import time
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from bluecomm.errors import BluecommError, CommunicationTimeout, MismatchError
from bluecomm.runtime.rendezvous import store_meeting
from bluecomm.runtime.rendezvous.host import process_start
from bluecomm.runtime.rendezvous.secret import SecretHandover
from bluecomm.runtime.rendezvous.store_meeting import StoreMeeting
from tests.support.deadlines import DEADLINE_S

SECRET = bytes(range(32))


@pytest.fixture(autouse=True)
def threads_are_ranks(monkeypatch):
    """Run the ranks of a test as threads of one process."""
    monkeypatch.setattr(StoreMeeting, "_claim", lambda self: None)


@pytest.fixture
def secret_file(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return str(path)


def meet(
    store,
    size,
    secret_file,
    *,
    sizes=None,
    ranks=None,
    timeout_s=DEADLINE_S,
    folder="",
    shared_folder=None,
):
    """Return the meeting, or the error, of each rank."""
    outcomes = {}

    def body(rank):
        handover = SecretHandover(
            secret_file, folder, channel="a store", shared_folder=shared_folder
        )
        believed = (sizes or {}).get(rank, size)
        try:
            outcomes[rank] = StoreMeeting(
                store, "p", rank, believed, handover, timeout_s
            )
        except Exception as error:
            outcomes[rank] = error

    threads = [
        threading.Thread(target=body, args=[rank], name=str(rank))
        for rank in ranks or range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + DEADLINE_S)
    return outcomes


def test_all_ranks_get_one_start_and_one_secret(secret_file):
    met = meet(HashStore(), 3, secret_file)
    assert len({meeting.start for meeting in met.values()}) == 1
    assert len({meeting.secret for meeting in met.values()}) == 1
    assert met[0].secret != SECRET


def test_records_are_exchanged_by_rank_and_round(secret_file):
    met = meet(HashStore(), 2, secret_file)
    for number in range(2):
        got = {}

        def body(rank, number=number, got=got):
            got[rank] = met[rank].exchange({"n": 10 * number + rank}, DEADLINE_S)

        threads = [threading.Thread(target=body, args=[rank]) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        expected = [{"n": 10 * number}, {"n": 10 * number + 1}]
        assert got == {0: expected, 1: expected}
    met[0].await_readers()


def test_a_restarted_rank_does_not_meet_an_earlier_start(secret_file):
    store = HashStore()
    earlier = meet(store, 3, secret_file)
    # The others arrive while the store still holds the records of the earlier start.
    outcomes = {}
    late = threading.Thread(
        target=lambda: outcomes.update(meet(store, 2, secret_file, ranks=[1]))
    )
    late.start()
    late.join(0.3)
    assert late.is_alive(), outcomes
    again = meet(store, 2, secret_file, ranks=[0])
    late.join(DEADLINE_S)
    assert outcomes[1].start == again[0].start != earlier[0].start
    assert outcomes[1].secret == again[0].secret != earlier[0].secret


def test_ranks_that_do_not_come_are_named(secret_file, monkeypatch):
    answers = []
    answer = StoreMeeting._answer

    def count(meeting):
        answer(meeting)
        answers.append(meeting)

    # No time passes before the others have come.
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() if len(answers) == 2 else 0.0,
        sleep=time.sleep,
    )
    monkeypatch.setattr(StoreMeeting, "_answer", count)
    monkeypatch.setattr(store_meeting, "time", clock)
    met = meet(HashStore(), 4, secret_file, ranks=[0, 2], timeout_s=0.2)
    for rank in (0, 2):
        assert isinstance(met[rank], CommunicationTimeout)
        assert met[rank].peers == (1, 3)
        assert f"init on rank {rank}: rank 1, 3 did not call" in str(met[rank])


def test_a_rank_zero_that_does_not_come_is_named(secret_file):
    met = meet(HashStore(), 2, secret_file, ranks=[1], timeout_s=0.2)
    assert isinstance(met[1], CommunicationTimeout)
    assert met[1].peers == (0,)


def test_differing_world_sizes_are_named(secret_file):
    met = meet(HashStore(), 2, secret_file, sizes={1: 3})
    for rank, expected in ((0, 2), (1, 3)):
        assert isinstance(met[rank], MismatchError)
        assert f"expected {expected}" in str(met[rank])


def test_differing_versions_are_named(secret_file, monkeypatch):
    facts = store_meeting.host_facts

    def versions_differ(size):
        number = int(threading.current_thread().name)
        return {**facts(size), "version": str(number)}

    monkeypatch.setattr(store_meeting, "host_facts", versions_differ)
    met = meet(HashStore(), 2, secret_file)
    assert "bluecomm of rank 1 differs (expected 0, got 1)" in str(met[0])
    assert "bluecomm of rank 0 differs (expected 1, got 0)" in str(met[1])
    assert all(isinstance(error, MismatchError) for error in met.values())


def test_no_secret_is_made_for_ranks_that_disagree(tmp_path):
    met = meet(HashStore(), 2, None, sizes={1: 3}, folder=str(tmp_path))
    assert all(isinstance(error, MismatchError) for error in met.values())
    assert not list(tmp_path.iterdir())


def test_ranks_of_one_machine_share_the_secret_in_a_private_file(tmp_path):
    store = HashStore()
    met = meet(store, 2, None, folder=str(tmp_path))
    assert met[0].secret == met[1].secret
    table = json.loads(store.get(f"p/{met[0].start}/table"))
    assert met[0].secret.hex() not in json.dumps(table)
    met[0].forget_secret()
    assert not list(tmp_path.iterdir())


def test_ranks_of_two_machines_share_it_in_a_folder_of_both(
    tmp_path, monkeypatch, caplog
):
    facts = store_meeting.host_facts

    def machines_differ(size):
        return {**facts(size), "machine": threading.current_thread().name}

    monkeypatch.setattr(store_meeting, "host_facts", machines_differ)
    met = meet(HashStore(), 2, None, folder="/nonexistent", shared_folder=str(tmp_path))
    assert met[0].secret == met[1].secret
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not caplog.text
    store = HashStore()
    met = meet(store, 2, None, folder="/nonexistent")
    assert met[0].secret == met[1].secret
    assert "BLUECOMM_SECRET_FILE" in caplog.text


def test_a_second_process_that_claims_a_rank_is_refused(secret_file, monkeypatch):
    monkeypatch.undo()
    store = HashStore()
    handover = SecretHandover(secret_file, "", channel="a store")
    StoreMeeting(store, "p", 0, 1, handover, 1.0)
    # An earlier process with this id, and a process that still runs.
    StoreMeeting(store, "p", 0, 1, handover, 1.0)
    claim = {
        "machine": store_meeting.machine_identity(),
        "pid": 1,
        "start": process_start(1),
    }
    store.set("p/claim/0", json.dumps(claim))
    with pytest.raises(BluecommError, match="rank 0, which process 1 has already"):
        StoreMeeting(store, "p", 0, 1, handover, 1.0)
    store.set("p/claim/0", json.dumps({**claim, "start": "another process's"}))
    StoreMeeting(store, "p", 0, 1, handover, 1.0)
