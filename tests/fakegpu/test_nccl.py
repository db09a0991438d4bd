"""The fake's NCCL between processes: results, misuse, lost peers."""

import ctypes
import os
import signal
import time

import pytest

from tests.support.deadlines import DEADLINE_S, hear, say
from tests.support.fakegpu.nccl_rank import (
    COUNT,
    FLOAT32,
    IN_PROGRESS,
    INT32,
    INVALID_USAGE,
    REMOTE,
    Rank,
    WrongCalls,
    run,
)
from tests.support.ranks import RankFailure

pytestmark = pytest.mark.mp

SUM, PROD, MAX, MIN, AVG = range(5)


def results(rank, size, unique_id):
    """Return the results of all operations, and violations."""
    own = Rank(rank, size, unique_id)
    assert own.settle() == 0
    mine = [10 * rank + i for i in range(COUNT)]
    x, out = own.buffer(mine), own.buffer([0] * COUNT)
    large = own.buffer([0] * COUNT * size)
    spread = own.buffer([100 * rank + i for i in range(COUNT * size)])
    found = {}

    def take(name, *arguments, target=out, count=COUNT):
        assert own.do(name, *arguments) == 0
        found[name] = own.values(target, count)

    take("ncclAllReduce", x, out, COUNT, INT32, SUM)
    take("ncclReduce", x, out, COUNT, INT32, MAX, 1)
    take("ncclBroadcast", x, out, COUNT, INT32, 2)
    take("ncclAllGather", x, large, COUNT, INT32, target=large, count=COUNT * size)
    take("ncclReduceScatter", spread, out, COUNT, INT32, SUM)
    left, right = (rank - 1) % size, (rank + 1) % size
    result = own.group(
        ("ncclSend", x, COUNT, INT32, right),
        ("ncclRecv", out, COUNT, INT32, left),
        ("ncclSend", x, COUNT, INT32, rank),
        ("ncclRecv", large, COUNT, INT32, rank),
    )
    assert result == 0
    found["ring"] = own.values(out)
    found["self"] = own.values(large)
    return found, own.destroy()


def test_operations_equal_arithmetic(seed):
    ranks = [[10 * rank + i for i in range(COUNT)] for rank in range(3)]
    added = [sum(items) for items in zip(*ranks, strict=True)]
    for rank, (found, violations) in enumerate(run(results, seed=seed)):
        assert violations == []
        reduced = [20, 21, 22] if rank == 1 else added  # others keep what they had
        assert found == {
            "ncclAllReduce": added,
            "ncclReduce": reduced,
            "ncclBroadcast": ranks[2],
            "ncclAllGather": [item for items in ranks for item in items],
            "ncclReduceScatter": [300 + 3 * (COUNT * rank + i) for i in range(COUNT)],
            "ring": ranks[(rank - 1) % 3],
            "self": ranks[rank],
        }


def many_types(rank, size, unique_id):
    """Return sums and averages of values that bf16 and fp8 hold exactly."""
    import torch

    own = Rank(rank, size, unique_id, blocking=1)
    found = []
    for number, dtype in (
        *((0, torch.int8), (1, torch.uint8), (4, torch.int64), (6, torch.float16)),
        *((7, torch.float32), (8, torch.float64), (9, torch.bfloat16)),
        *((10, torch.float8_e4m3fn), (11, torch.float8_e5m2)),
    ):
        values = torch.tensor([1.0, 2.0, 4.0]) * (rank + 1)
        bits = values.to(dtype).view(torch.uint8)
        x = own.buffer(bits.tolist(), "B")
        for reduction in (SUM, AVG, PROD, MIN):
            out = own.buffer([0] * len(bits), "B")
            assert own.do("ncclAllReduce", x, out, COUNT, number, reduction) == 0
            result = own.values(out, len(bits), "B")
            result = torch.tensor(result, dtype=torch.uint8).view(dtype)
            found.append((str(dtype), reduction, result.to(torch.float64).tolist()))
    scale, made = ctypes.c_float(0.5), ctypes.c_int()
    own.nccl.ncclRedOpCreatePreMulSum(
        ctypes.byref(made), ctypes.byref(scale), FLOAT32, 1, own.comm
    )
    x = own.buffer([1.0 + rank] * COUNT, "f")
    assert own.do("ncclAllReduce", x, x, COUNT, FLOAT32, made) == 0
    assert own.nccl.ncclRedOpDestroy(made, own.comm) == 0
    return found, own.values(x, letter="f"), own.device.violations()


def test_types_and_reductions():
    for found, scaled, violations in run(many_types, world=2):
        assert violations == []
        assert scaled == [1.5] * COUNT
        for dtype, reduction, values in found:
            average = [1, 3, 6] if "int" in dtype else [1.5, 3, 6]
            product = [2, 8, 32]
            expected = {SUM: [3, 6, 12], AVG: average, PROD: product, MIN: [1, 2, 4]}
            assert values == expected[reduction], (dtype, reduction)


def rounding(rank, size, unique_id):
    """Return 16-bit sums whose exact value lies between two numbers."""
    import torch

    own = Rank(rank, size, unique_id, blocking=1)
    generator = torch.Generator().manual_seed(rank)
    found = []
    for number, dtype in ((6, torch.float16), (9, torch.bfloat16)):
        values = torch.randn(1000, generator=generator) * 10.0 ** torch.randint(
            -9, 4, (1000,), generator=generator
        )
        bits = values.to(dtype).view(torch.uint8).tolist()
        x = own.buffer(bits, "B")
        assert own.do("ncclAllReduce", x, x, 1000, number, SUM) == 0
        total = torch.tensor(own.values(x, 2000, "B"), dtype=torch.uint8).view(dtype)
        found.append((values.to(dtype), total))
    return found


def test_small_floats_round_as_torch_does():
    import torch

    for (first, total), (second, other) in zip(*run(rounding, world=2), strict=True):
        expected = (first.float() + second.float()).to(first.dtype)
        assert torch.equal(total, expected)
        assert torch.equal(other, expected)


def splitting(rank, size, unique_id):
    """Return sums over the even ranks, in the reverse order of ranks."""
    own = Rank(rank, size, unique_id)
    own.settle()
    child = ctypes.c_void_p()
    color = 0 if rank % 2 == 0 else -1
    own.nccl.ncclCommSplit(own.comm, color, -rank, ctypes.byref(child), None)
    assert own.settle() == 0
    assert bool(child.value) == (color == 0)
    if color < 0:
        return None, own.device.violations()
    assert own.settle(child) == 0
    x, out = own.buffer([rank] * COUNT), own.buffer([0] * 2 * COUNT)
    assert own.do("ncclAllGather", x, out, COUNT, INT32, comm=child) == 0
    return own.values(out, 2 * COUNT), own.device.violations()


def test_split(seed):
    expected = [2] * COUNT + [0] * COUNT
    assert run(splitting, seed=seed) == [(expected, []), (None, []), (expected, [])]


def misuse(rank, size, unique_id):
    """Return the violations of calls that are wrong in one way each."""
    own = Rank(rank, size, unique_id)
    nccl, wrong = own.nccl, WrongCalls(own.device)
    note = wrong.note
    x, y = own.buffer([1] * COUNT), own.buffer([2] * COUNT)

    own.settle()
    note("end", nccl.ncclGroupEnd())
    note("self", own.do("ncclSend", x, COUNT, INT32, rank))
    note("rank", own.do("ncclSend", x, COUNT, INT32, 7))
    note("type", own.do("ncclAllReduce", x, y, COUNT, 99, SUM))
    note("reduction", own.do("ncclAllReduce", x, y, COUNT, INT32, 55))
    nccl.ncclGroupStart()
    nccl.ncclSend(x, COUNT, INT32, rank, own.comm, own.stream)
    nccl.ncclRecv(x, COUNT, INT32, rank, own.comm, own.stream)
    note("overlap", nccl.ncclGroupEnd())
    note("bounds", own.do("ncclAllReduce", x, y, 400, INT32, SUM))
    note("host", own.do("ncclAllReduce", 4096, y, COUNT, INT32, SUM))
    note("comm", nccl.ncclCommAbort(4096))
    nccl.ncclCommAbort(own.comm)
    note("late", own.do("ncclAllReduce", x, y, COUNT, INT32, SUM))
    return wrong.found


def test_misuse_is_reported():
    [found] = run(misuse, world=1)
    for name, text in {
        "end": "without ncclGroupStart",
        "self": "do not match",
        "rank": "no such rank",
        "type": "an unknown type",
        "reduction": "an unknown reduction",
        "bounds": "beyond the end",
        "host": "neither device nor pinned memory",
        "overlap": "overlaps",
        "comm": "not a communicator",
        "late": "is destroyed",
    }.items():
        result, violation = found[name]
        assert result != 0, name
        assert text in violation, name


def early(rank, size, unique_id):
    """Use a communicator that has not connected yet."""
    own = Rank(rank, size, unique_id)
    x = own.buffer([1] * COUNT)
    result = own.nccl.ncclAllReduce(x, x, 1, INT32, SUM, own.comm, own.stream)
    own.nccl.ncclCommAbort(own.comm)
    return result, own.device.violations()


def test_a_communicator_in_progress_takes_no_operation():
    environment = {"FAKEGPU_FAIL": "ncclCommInitRankConfig:1=hang"}
    for result, texts in run(early, world=2, environment=environment):
        assert result == INVALID_USAGE
        assert "the communicator is in progress" in texts[0]


def disagreeing(rank, size, unique_id):
    """Return the async error of ranks that call different operations."""
    own = Rank(rank, size, unique_id)
    own.settle()
    x = own.buffer([1] * COUNT)
    own.do("ncclAllReduce", x, x, COUNT - rank, INT32, SUM)
    error = own.await_error()
    assert own.nccl.ncclCommAbort(own.comm) == 0
    own.device.read(x, 4, own.stream)  # the stream goes on
    return error, own.device.violations()


def test_ranks_that_disagree_are_reported():
    found = run(disagreeing, world=2)
    texts = [text for _, texts in found for text in texts]
    assert all(error in (3, REMOTE) for error, _ in found)
    assert any("ncclAllReduce of 3 items" in text for text in texts)


def in_progress(rank, size, unique_id):
    """Record an event before an operation is on the stream."""
    own = Rank(rank, size, unique_id)
    own.settle()
    x = own.buffer([1] * COUNT)
    for _ in range(40):
        result = own.nccl.ncclAllReduce(x, x, 1, INT32, SUM, own.comm, own.stream)
        if result == IN_PROGRESS:
            own.device.record(own.stream)
        own.settle()
    return own.device.violations()


def test_a_stream_is_not_touched_while_a_group_is_in_progress():
    environment = {"FAKEGPU_DELAY_US": "2000"}
    for texts in run(in_progress, world=2, environment=environment):
        assert any("before ncclGroupEnd is complete" in text for text in texts)


def ungrouped(rank, size, unique_id, *, folder):
    """Send, then receive, on both ranks, outside of a group."""
    own = Rank(rank, size, unique_id)
    own.settle()
    x, y = own.buffer([1] * COUNT), own.buffer([0] * COUNT)
    assert own.do("ncclSend", x, COUNT, INT32, 1 - rank) == 0
    assert own.do("ncclRecv", y, COUNT, INT32, 1 - rank) == 0
    event = own.device.record(own.stream)
    say(folder, f"called-{rank}")
    hear(folder, f"called-{1 - rank}")
    time.sleep(0.2)  # in which a send without its receive might end
    hangs = own.device.libraries.cuda.cuEventQuery(event) == 600
    say(folder, f"looked-{rank}")
    hear(folder, f"looked-{1 - rank}")  # its calls would fail after the abort
    own.nccl.ncclCommAbort(own.comm)
    return hangs


def test_sends_outside_of_a_group_wait_for_their_receives(tmp_path):
    assert run(ungrouped, world=2, folder=tmp_path) == [True, True]


def last_words(rank, size, unique_id, *, dies, folder):
    """Return the error that a rank sees when another dies in an operation."""
    own = Rank(rank, size, unique_id)
    own.settle()
    x = own.buffer([1] * COUNT)
    if rank == dies:
        for other in {*range(size)} - {dies}:  # which are in the operation then
            hear(folder, f"called-{other}")
        os.kill(os.getpid(), signal.SIGKILL)
    own.do("ncclAllReduce", x, x, COUNT, INT32, SUM)
    event = own.device.record(own.stream)
    say(folder, f"called-{rank}")
    error = own.await_error()
    pending = own.device.libraries.cuda.cuEventQuery(event)
    assert own.nccl.ncclCommAbort(own.comm) == 0
    own.device.read(x, 4, own.stream)
    # A failure, since the rank that died fails the run anyway.
    raise AssertionError(f"error {error}, query {pending}")


def test_a_killed_rank_is_an_async_error_and_the_abort_frees_the_stream(tmp_path):
    with pytest.raises(RankFailure) as failure:
        run(last_words, report_s=DEADLINE_S, dies=2, folder=tmp_path)
    assert str(failure.value).count(f"error {REMOTE}, query 600") == 2


def unlike(rank, size, unique_id):
    """Return the error of ranks that have different versions, or one GPU."""
    own = Rank(rank, size, unique_id, device=0)
    error = own.settle()
    text = own.nccl.ncclGetLastError(own.comm).decode()
    own.nccl.ncclCommAbort(own.comm)
    return error, text


def test_two_ranks_with_one_gpu_are_refused():
    for error, text in run(unlike, world=2):
        assert error == INVALID_USAGE
        assert "Duplicate GPU detected" in text


def injected(rank, size, unique_id):
    """Return what three operations return, and the async error after the third."""
    own = Rank(rank, size, unique_id)
    own.settle()
    x = own.buffer([1] * COUNT)
    answers = [own.do("ncclAllReduce", x, x, COUNT, INT32, SUM) for _ in range(3)]
    error = own.await_error()
    own.nccl.ncclCommAbort(own.comm)
    return answers[:2], error, own.device.violations()


def test_errors_are_injected():
    environment = {"FAKEGPU_FAIL": "ncclAllReduce:2=1,ncclAllReduce:3=async3"}
    for answers, error, violations in run(injected, world=1, environment=environment):
        assert answers == [0, 1]
        assert error == 3
        assert violations == []
