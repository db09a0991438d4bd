"""Transactions on one rank, with an engine whose requests end when the test says so."""

import contextlib
import functools
import threading
import types

import pytest

from bluecomm.errors import (
    BluecommError,
    PeerLostError,
    ShutdownError,
    SuspendedError,
)
from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.runtime.epochs.epochs import Epochs
from bluecomm.runtime.epochs.ledger import Decision
from bluecomm.runtime.epochs.transaction import TransactionState
from bluecomm.runtime.epochs.transactions import Transactions
from bluecomm.runtime.failure import INTERNAL, OK, Reason, is_late, late
from bluecomm.runtime.members import Members
from bluecomm.runtime.parameters import parameters
from tests.support.deadlines import DEADLINE_S

RANKS = (4, 6, 7)


class Request:
    """A request of the engine."""

    def __init__(self, call):
        self.call = call
        self.completion = types.SimpleNamespace(code=OK)
        self.has_ended = False
        self.callbacks = []

    def done(self):
        return self.has_ended

    def await_end(self, timeout_s=None):
        if timeout_s is None:
            self.end()
        return self.completion if self.has_ended else None

    def failure_of(self, completion):
        return BluecommError(completion.text)

    def on_finish(self, callback):
        if self.has_ended:
            callback()
        else:
            self.callbacks.append(callback)

    def wait(self):
        return self.call.kind

    def end(self):
        self.has_ended = True
        while self.callbacks:
            self.callbacks.pop()()


class World:
    """The parts of a world that transactions use."""

    rank = 4
    is_ending = False

    def __init__(self):
        self.members = Members(8, survives_losses=True)
        self.is_suspended = False
        self.started = []
        self.late = []
        self.while_in_engine = lambda: None

    def check_usable(self):
        pass

    def check_running(self, operation, name):
        pass

    def start(self, call):
        if self.is_suspended:
            raise SuspendedError("suspended")
        self.started.append(Request(call))
        return self.started[-1]

    def take_late_failure(self, call):
        return self.late.pop() if self.late else None

    def run_after(self, handles, call, started):
        if all(handle.done() for handle in handles):
            started.append(self.start(call))
        self.while_in_engine()

    def end_all(self):
        for request in self.started:
            request.end()


def group_of(world, ranks, group_id):
    refused = []
    return types.SimpleNamespace(
        world=world,
        ranks=ranks,
        group_id=group_id,
        is_world=False,
        refused=refused,
        refuse=lambda *call: refused.append(call),
        free=lambda: None,
    )


def call_of(name, kind="allreduce", **options):
    call = Call(kind, "float32", (1,), (64, 4), (128, 4), (), lambda _: None)
    call.name = name
    for word, value in options.items():
        setattr(call, word, value)
    return call


@pytest.fixture
def world():
    return World()


@pytest.fixture
def transactions(world):
    first = group_of(world, RANKS, 1)
    made = Transactions(first)
    with made.locked():
        assert made.settle(first)
    return made


def lose(transactions, world, rank, decisions=None):
    """Go on without a rank; return whether the new epoch has begun."""
    world.members.remove(rank, "lost", f"rank {rank} is lost")
    with transactions.locked():
        transactions.interrupt()
        transactions.carry_out(decisions or {})
    return begin(transactions, world, rank)


def begin(transactions, world, rank):
    left = tuple(one for one in RANKS if one != rank)
    with transactions.locked():
        return transactions.settle(group_of(world, left, 2))


def test_what_nobody_has_released_is_repeated_with_fewer_contributors(
    transactions, world
):
    handle = transactions.start(call_of("loss"))
    assert lose(transactions, world, 6)
    assert [request.call.group_id for request in world.started] == [2, 2]
    world.started[-1].end()
    assert not handle.done()
    world.end_all()  # the barrier, too
    assert handle.wait() == "allreduce"
    assert handle.transaction.contributors == 2


def test_a_suspended_rank_repeats_what_is_open_when_it_resumes(transactions, world):
    first = transactions.start(call_of("loss"))
    second = transactions.start(call_of("loss"))
    world.is_suspended = True
    assert not lose(transactions, world, 6)
    assert not begin(transactions, world, 6)
    world.is_suspended = False
    third = transactions.start(call_of("loss"))
    assert len(world.started) == 2, "a new call must wait for those before it"
    assert begin(transactions, world, 6)
    assert [request.call.name for request in world.started[2:]] == ["loss"] * 3
    world.end_all()
    for handle in (first, second, third):
        assert handle.wait() == "allreduce"


def test_requests_that_end_before_the_epoch_begins_are_noticed(transactions, world):
    started = world.start
    first = transactions.start(call_of("loss"))
    second = transactions.start(call_of("metric"))
    world.start = suspended_after(world, started, 3)
    assert not lose(transactions, world, 6)
    world.started[2].end()
    world.start = started
    assert begin(transactions, world, 6)
    world.end_all()
    assert first.wait() == second.wait() == "allreduce"


def suspended_after(world, started, count):
    def start(call):
        if len(world.started) >= count:
            raise SuspendedError("suspended")
        return started(call)

    return start


def test_a_call_is_in_flight_until_it_is_released(transactions, world):
    handle = transactions.start(call_of("loss"))
    assert transactions.is_in_flight("allreduce", "loss")
    assert not transactions.is_in_flight("allreduce", "other")
    assert not transactions.is_in_flight("broadcast", "loss")
    world.started[0].end()
    assert transactions.is_in_flight("allreduce", "loss"), "its barrier has not ended"
    world.end_all()
    assert not transactions.is_in_flight("allreduce", "loss")
    handle.wait()


def test_a_failure_of_an_earlier_operation_is_raised_after_the_release(
    transactions, world
):
    handle, other = (transactions.start(call_of(name)) for name in ("x", "y"))
    world.late.append(late(BluecommError("it was carried out; late")))
    world.end_all()
    assert handle.done()
    assert handle.transaction.state is TransactionState.RELEASED
    with pytest.raises(BluecommError, match="it was carried out; late") as error:
        handle.wait()
    assert is_late(error.value)
    assert other.wait() == "allreduce"
    assert not any(request.call.raises_late for request in world.started)


def test_a_transaction_that_fails_leaves_earlier_failures_to_the_next_call(
    transactions, world
):
    handle, other = (transactions.start(call_of(name)) for name in ("x", "y"))
    world.late.append(late(BluecommError("it was carried out; late")))
    world.started[0].completion = types.SimpleNamespace(code=INTERNAL, text="it broke")
    world.started[0].completion.rank = 1
    world.end_all()
    with pytest.raises(BluecommError, match="it broke"):
        handle.wait()
    with pytest.raises(BluecommError, match="it was carried out; late"):
        other.wait()


class EndsWhenAsked(Request):
    """A request that ends just after it was asked some times whether it has ended."""

    def __init__(self, call, times):
        super().__init__(call)
        self.has_ended = True
        self.answers = iter([False] * times)

    def done(self):
        return next(self.answers, True)


def test_a_request_that_ends_at_any_moment_is_noticed_at_once(
    transactions, world, monkeypatch
):
    monkeypatch.setattr(transactions.changed, "wait", lambda *_: pytest.fail("waits"))
    for times in range(6):
        world.start = functools.partial(EndsWhenAsked, times=times)
        assert transactions.start(call_of("loss")).wait() == "allreduce"


def begun_round(transactions):
    transaction = transactions.begin("optim.gradients", 1, in_background=False)
    with transaction:
        transactions.start(call_of("bucket"))
    return transaction


def barriers(world):
    return [one.call.group_id for one in world.started if one.call.kind == "barrier"]


def test_who_waits_enters_the_barrier_in_the_engine_and_nobody_else_does(
    transactions, world
):
    transaction = begun_round(transactions)
    world.end_all()

    def meddle():
        assert not transaction.poll(), "another thread must not enter the barrier"
        assert barriers(world) == [1]
        world.end_all()

    world.while_in_engine = meddle
    assert transaction.wait()
    assert transaction.state is TransactionState.RELEASED
    assert barriers(world) == [1]


def test_a_barrier_that_the_engine_has_not_entered_is_entered_later(
    transactions, world
):
    transaction = begun_round(transactions)
    world.while_in_engine = world.end_all  # too late for the engine
    assert transaction.wait()
    assert barriers(world) == [1]


def test_a_barrier_is_entered_once_even_if_a_signal_handler_raises(transactions, world):
    transaction = begun_round(transactions)
    world.end_all()

    def interrupt():
        raise KeyboardInterrupt

    world.while_in_engine = interrupt
    with pytest.raises(KeyboardInterrupt):
        transaction.wait()
    assert barriers(world) == [1]
    world.end_all()
    assert transaction.wait()
    assert barriers(world) == [1]


def test_a_signal_between_the_lock_and_the_engine_leaves_the_barrier_to_others(
    transactions, world, monkeypatch
):
    transaction = begun_round(transactions)
    world.end_all()

    @contextlib.contextmanager
    def interrupted():
        with Transactions.locked(transactions):
            yield
        if transaction.entering is not None:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(transactions, "locked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transaction.wait()
    assert transaction.poll() is False
    world.end_all()
    assert transaction.poll()
    assert barriers(world) == [1]


def test_a_round_that_is_lost_in_the_engine_is_repeated(transactions, world):
    transaction = begun_round(transactions)
    world.end_all()

    def lose_one():
        world.while_in_engine = lambda: None
        world.end_all()  # the barrier has ended here, but has released nothing yet
        assert lose(transactions, world, 6)
        world.end_all()

    world.while_in_engine = lose_one
    assert transaction.wait()
    assert barriers(world) == [1, 2]
    assert transaction.contributors == 2


def test_a_broadcast_in_place_is_repeated_but_no_allreduce(transactions, world):
    for kind in ("broadcast", "allreduce"):
        transactions.start(call_of("large", kind, destination=(64, 4)))
    reasons = {name: reason for name, _, reason in transactions.ledger.report()}
    assert reasons == {
        "broadcast.large": "",
        "allreduce.large": "it has overwritten its input",
    }


def test_another_root_takes_the_place_of_a_lost_one_if_any_will_do(transactions, world):
    for name, any_root in (("weights", False), ("buffers", True)):
        made = call_of(name, "broadcast", any_root=any_root)
        made.parameters = parameters(root=1)
        handle = transactions.start(made)
        if any_root:
            fit = handle
        else:
            unfit = handle
    decisions = {("broadcast.weights", 0): (Decision.REPEAT, "")}
    assert lose(transactions, world, 6, decisions)
    with pytest.raises(PeerLostError, match="its root, rank 6, is lost"):
        unfit.wait()
    assert world.started[-1].call.parameters.root == 0
    world.end_all()
    assert fit.wait() == "broadcast"


def test_a_call_says_how_many_have_contributed(transactions, world):
    made = call_of("loss", source=NO_MEMORY)
    transactions.start(made)
    assert made.contributors == 3
    assert lose(transactions, world, 7)
    assert made.contributors == 2


def test_an_epoch_is_not_left_before_a_barrier_that_has_ended_is_noticed(world):
    next_epoch, states = threading.Event(), []

    def make_group(ranks, name):
        if len(ranks) == len(RANKS):
            return group_of(world, RANKS, 1)
        states.append(transaction.state)
        world.is_ending = True
        next_epoch.set()
        raise ShutdownError("the test ends")

    transactions = Epochs(group_of(world, RANKS, 0), make_group).transactions
    transaction = transactions.begin("optim.gradients", 1, in_background=False)
    with transaction:
        transactions.start(call_of("loss"))
    world.end_all()
    transaction.poll()  # enters the barrier
    world.end_all()
    assert not transaction.is_over
    world.members.remove(6, "finished", "rank 6 has finished")
    assert next_epoch.wait(DEADLINE_S)
    assert states == [TransactionState.RELEASED]


def start_and_fail(transactions, world, monkeypatch):
    """Return a call in which NCCL has failed, while the ranks hold decisions back."""
    monkeypatch.setattr(f"{Transactions.__module__}.REPORT_S", 0.0)
    handle = transactions.start(call_of("x", ticket=object(), blocking=True))
    world.members.is_held = True
    world.started[-1].completion = types.SimpleNamespace(
        code=INTERNAL, rank=-1, text="NCCL failed", was_carried_out=False
    )
    world.started[-1].end()
    return handle


def test_a_failure_of_nccl_waits_until_the_ranks_can_decide(
    transactions, world, monkeypatch
):
    handle = start_and_fail(transactions, world, monkeypatch)
    for _ in range(3):
        assert not handle.done()
    world.members.is_held = False
    assert handle.done()
    with pytest.raises(BluecommError, match="none of ranks 4, 6-7 was found") as error:
        handle.wait()
    assert error.value.peers == (6, 7)


def test_a_failure_of_nccl_while_the_ranks_cannot_decide_may_be_a_loss(
    transactions, world, monkeypatch
):
    handle = start_and_fail(transactions, world, monkeypatch)
    assert not handle.done()
    world.members.is_held = False
    assert lose(transactions, world, 7)
    world.end_all()
    assert not handle.done()  # in the barrier
    world.end_all()
    assert handle.wait() == "allreduce"


def test_a_call_that_follows_from_a_transaction_is_not_part_of_it(transactions, world):
    together = transactions.begin("round", 1, in_background=False)
    with together:
        transactions.start(call_of("bucket", kind="allgather"))
        world.end_all()
        assert not together.poll()  # it has entered its barrier
        world.end_all()
        assert together.poll()
        # A step of a chain runs as soon as the operation before it has ended.
        rows = transactions.start(call_of("bucket.rows", kind="allgather"))
    world.end_all()
    assert rows.wait() == "allgather"


def test_calls_are_counted_in_and_outside_of_a_round(transactions, world):
    """The names of follow-up calls contain the count."""
    call = call_of("bucket")
    transactions.start(call_of("bucket"))
    for count in (2, 3):
        with transactions.begin("round", 1, in_background=False):
            transactions.start(call_of("bucket"))
        assert transactions.calls_like(call) == count
    world.refuse = lambda *_: None
    transactions.refuse(call_of("bucket"), Reason("no"))
    assert transactions.calls_like(call) == 4
    assert transactions.calls_like(call_of("other")) == 0


def test_a_callback_of_another_transaction_is_not_part_of_that_of_its_thread(
    transactions, world
):
    rows = []
    numbers = transactions.start(call_of("mine", kind="allgather"))
    numbers.on_finish(lambda: rows.append(transactions.start(call_of("mine.rows"))))
    together = transactions.begin("round", 2, in_background=False)
    with together:
        transactions.start(call_of("bucket 0"))
        world.end_all()  # so this thread calls the callback
        transactions.start(call_of("bucket 1"))
    assert rows[0].transaction is not together
    assert [one.call.name for one in together.operations] == ["bucket 0", "bucket 1"]
