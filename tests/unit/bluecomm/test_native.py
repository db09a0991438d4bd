"""The extension module by itself, in one process: names, ownership, forks."""

import array
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from bluecomm._native import (
    Engine,
    Parameters,
    SharedMemory,
    Window,
    transport_names,
)
from bluecomm.config import Config
from bluecomm.runtime.call import NO_MEMORY, Call
from tests.support.deadlines import DEADLINE_S

WORLD = 1


def make_engine(rank: int, size: int, socket_dir: Path, **options: Any) -> Engine:
    settings: dict[str, Any] = {
        "rank": rank,
        "size": size,
        "job": "job",
        "epoch": 0,
        "secret": b"k" * 32,
        "socket_dir": str(socket_dir),
        "addresses": ["127.0.0.1"],
        "machine": "here",
        "memory": SharedMemory(),
        **options,
    }
    return Engine(**settings)


def start_all(engines: list[Engine]) -> None:
    ranks = range(len(engines))
    peers: Any = [
        {
            "rank": rank,
            "host": f"host{rank}",
            "machine": "here",
            "pid": 1000 + rank,
            "offers": engines[rank].offers(),
        }
        for rank in ranks
    ]
    for engine in engines:
        engine.start(peers)
        engine.add_group(WORLD, list(ranks), [0 for _ in ranks])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Engine]]:
    engines = [make_engine(rank, 2, tmp_path) for rank in range(2)]
    start_all(engines)
    yield engines
    for engine in engines:
        engine.close(5.0)


def call_on(tensor: "array.array[float]", **changes: Any) -> Call[None]:
    """Return an allreduce in place, with some of its attributes changed."""
    address, count = tensor.buffer_info()
    memory = (address, 4 * count)
    call: Call[None] = Call(
        "allreduce",
        "float32",
        [count],
        memory,
        memory,
        keep=(tensor,),
        finish=lambda _: None,
    )
    call.name = "x"
    call.group_id = WORLD
    call.limit_s = DEADLINE_S
    for name, value in changes.items():
        setattr(call, name, value)
    return call


def gather_of(tensor: "array.array[float]", **changes: Any) -> Call[None]:
    return call_on(tensor, kind="allgather", name="g", destination=NO_MEMORY, **changes)


def submit(engine: Engine, tensor: "array.array[float]", **changes: Any) -> int:
    return engine.submit(call_on(tensor, **changes))


def wait(engine: Engine, handle: int) -> str:
    completion = engine.wait(handle, DEADLINE_S)
    assert completion is not None
    engine.release(handle)
    assert (completion.code == 0) == (completion.text == "")
    return completion.text


def in_child(body: Callable[[], None]) -> int:
    """Run ``body`` in a forked child and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_two_ranks_in_one_process(pair: list[Engine]) -> None:
    tensors = [array.array("f", [1.0, 2.0]), array.array("f", [10.0, 20.0])]
    handles = [
        submit(engine, tensor) for engine, tensor in zip(pair, tensors, strict=True)
    ]
    for engine, handle in zip(pair, handles, strict=True):
        assert wait(engine, handle) == ""
    assert [list(tensor) for tensor in tensors] == [[11.0, 22.0]] * 2
    assert pair[0].transport_of(1) == "shm"
    assert pair[0].transport_of(0) == "self"
    assert pair[0].stats()["peers"][0]["messages_sent"] > 0


def test_a_rank_without_shared_memory_is_reached_over_tcp(tmp_path: Path) -> None:
    engines = [make_engine(rank, 2, tmp_path / f"{rank}") for rank in range(2)]
    assert [sorted(engine.offers()) for engine in engines] == [["tcp"], ["tcp"]]
    (tmp_path / "1").mkdir()
    engines[1] = make_engine(1, 2, tmp_path / "1")
    start_all(engines)
    assert [engines[0].transport_of(1), engines[1].transport_of(0)] == ["tcp", "tcp"]
    for engine in engines:
        engine.close(5.0)


def test_a_world_of_one(tmp_path: Path) -> None:
    engine = make_engine(0, 1, tmp_path)
    assert engine.offers() == {}
    start_all([engine])
    tensor = array.array("f", [3.0])
    handle = submit(engine, tensor)
    assert engine.done(handle)
    assert engine.finished() == [handle]
    assert wait(engine, handle) == ""
    gather = engine.submit(gather_of(tensor))
    assert engine.wait(gather, DEADLINE_S) is not None
    block, rows = engine.output(gather)
    engine.release(gather)
    engine.close(1.0)
    assert rows == [1]
    assert memoryview(block).cast("B").cast("f")[0] == 3.0


def test_results_outlive_the_engine_and_its_memory(tmp_path: Path) -> None:
    memory = SharedMemory()
    block = memory.allocate(5000)
    assert memory.contains(block.address, block.nbytes)
    assert not memory.contains(block.address - 1, block.nbytes)
    del memory
    view = memoryview(block)
    view[4999] = 7
    assert view.nbytes == block.nbytes == 5000
    assert view[4999] == 7


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kind": "all_reduce"}, "kind must be one of allreduce .*; got 'all_reduce'"),
        ({"dtype": "complex32"}, "dtype must be one of uint8 .*; got 'complex32'"),
        ({"group_id": 9}, "there is no group 9"),
        ({"limit_s": float("nan")}, "a time must not be NaN"),
    ],
)
def test_unknown_words_are_refused(
    pair: list[Engine], arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        submit(pair[0], array.array("f", [1.0]), **arguments)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": None}, RuntimeError),
        ({"source": 5}, RuntimeError),
        ({"shape": "wide"}, RuntimeError),
        ({"parameters": "sum"}, RuntimeError),
    ],
)
def test_attributes_of_other_types_are_refused(
    pair: list[Engine], arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        submit(pair[0], array.array("f", [1.0]), **arguments)


def test_a_call_without_an_attribute_is_refused(pair: list[Engine]) -> None:
    call = call_on(array.array("f", [1.0]))
    del call.limit_s
    with pytest.raises(AttributeError, match="limit_s"):
        pair[0].submit(call)
    assert pair[0].pending() == []


def test_a_blocking_call_leaves_nothing_behind(tmp_path: Path) -> None:
    engine = make_engine(0, 1, tmp_path)
    start_all([engine])
    kept: dict[int, Call[None]] = {}
    tensor = array.array("f", [3.0])
    options = {"parameters": Parameters(op="max"), "blocking": True}
    assert not engine.submit(call_on(tensor, **options), kept)
    assert kept == {}
    assert engine.finished() == []
    # The blocking call also waits for a gather, but its result must still be fetched.
    call = gather_of(tensor, **options)
    handle = engine.submit(call, kept)
    assert engine.done(handle)
    assert kept == {handle: call}
    assert engine.output(handle)[1] == [1]
    assert engine.release(handle)
    engine.close(1.0)
    assert engine.held() == []


def test_a_blocking_call_comes_back_for_a_signal(pair: list[Engine]) -> None:
    def caught(*_: object) -> None:
        raise InterruptedError

    def interrupt() -> None:
        while not pair[0].pending():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    def call_again_and_again() -> None:
        while True:  # a call returns after 0.1 s without a signal
            call = call_on(tensor, name="", limit_s=60.0, blocking=True)
            pair[0].submit(call, kept)

    tensor = array.array("f", [0.0])
    kept: dict[int, Call[None]] = {}
    before = signal.signal(signal.SIGINT, caught)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(InterruptedError):
            call_again_and_again()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    # The operation goes on, and its caller still knows which memory it uses.
    pending = {one["id"] for one in pair[0].pending()}
    assert pending == set(kept) != set()


class Kept:
    """Memory that a request still uses."""


def test_the_source_of_a_put_is_kept_under_its_id(tmp_path: Path) -> None:
    engines = [make_engine(rank, 2, tmp_path, transport="tcp") for rank in range(2)]
    start_all(engines)
    tensor = array.array("f", [3.0])
    address, count = tensor.buffer_info()
    windows = [
        Window(
            engine,
            id=1,
            name="x",
            rank=rank,
            dtype="float32",
            address=address,
            nbytes=4 * count,
            in_neighbors=[1 - rank],
            out_neighbors=[1 - rank],
            zero_init=True,
            memory=SharedMemory(),
        )
        for rank, engine in enumerate(engines)
    ]
    kept: dict[int, Kept] = {}
    opened = Kept()
    openings = [window.open(DEADLINE_S, kept, opened) for window in windows]
    for engine, opening in zip(engines, openings, strict=True):
        assert engine.wait(opening, DEADLINE_S) is not None
        assert engine.release(opening)
    kept.clear()
    keep = Kept()
    request = windows[0].put(
        address, [(1, 1.0)], False, False, DEADLINE_S, False, kept, keep
    )
    assert request > 0
    assert kept == {request: keep}
    assert wait(engines[0], request) == ""
    asked: list[Any] = []
    lock = windows[0].lock(1, DEADLINE_S, {}, asked)
    assert asked == [lock]
    assert wait(engines[0], lock) == ""
    windows[0].unlock(1, lock)
    for engine in engines:
        engine.close(5.0)


def test_an_unknown_reduction_is_refused() -> None:
    text = "op must be one of sum average min .* bit_xor; got 'mean'"
    with pytest.raises(ValueError, match=text):
        Parameters(op="mean")
    text = "algorithm must be one of auto direct ring hierarchical; got 'tree'"
    with pytest.raises(ValueError, match=text):
        Parameters(algorithm="tree")


def test_unknown_handles_ranks_and_transports(
    pair: list[Engine], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="request 77 is unknown"):
        pair[0].done(77)
    with pytest.raises(ValueError, match="rank 5 is not a peer of rank 0"):
        pair[0].peer_lost(5, "gone")
    with pytest.raises(ValueError, match=r"rank 5 is not in 0 \.\. 1"):
        pair[0].transport_of(5)
    with pytest.raises(ValueError, match="the group does not contain rank 0"):
        pair[0].add_group(3, [1], [0])
    with pytest.raises(ValueError, match="transport must be one of auto "):
        make_engine(0, 2, tmp_path, transport="ib")
    with pytest.raises(ValueError, match=r"code must be in 1 \.\. 7, got 0"):
        pair[0].fail(1, 0, "")


def test_peers_that_no_transport_reaches(tmp_path: Path) -> None:
    engine = make_engine(0, 2, tmp_path, transport="shm")
    peer: Any = {"rank": 1, "host": "far", "machine": "there", "pid": 5}
    with pytest.raises(
        ValueError, match=r"no transport reaches rank 1 on far \(pid 5\) .* shm"
    ):
        engine.start([{**peer, "offers": {"shm": "x", "tcp": "127.0.0.1:1"}}])


def test_pending_names_who_is_awaited(pair: list[Engine]) -> None:
    # Too long for an eager message, so rank 1 learns of the failure before it finishes.
    tensors = [array.array("f", [0.0] * 4096) for _ in pair]
    handle = submit(pair[0], tensors[0])
    (pending,) = pair[0].pending()
    assert pending["id"] == handle
    assert pending["kind"] == "allreduce"
    assert pending["group"] == WORLD
    assert pending["waiting_for"] == [1]
    assert pending["expected_bytes"] == 4 * 4096
    pair[0].fail(handle, 2, "enough")
    assert wait(pair[0], handle) == "enough"
    other = submit(pair[1], tensors[1])
    assert wait(pair[1], other) == "enough"


def test_a_signal_interrupts_a_wait(pair: list[Engine]) -> None:
    handle = submit(pair[0], array.array("f", [0.0]))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))

    def wait_for_ever() -> None:
        timer.start()
        pair[0].wait(handle, float("inf"))

    with pytest.raises(KeyboardInterrupt):
        wait_for_ever()
    timer.join()


def open_sockets() -> set[str]:
    links = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            links.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the listing's own
    return {link for link in links if link.startswith("socket:")}


def test_a_fork_has_no_engine(tmp_path: Path) -> None:
    before = open_sockets()
    engines = [make_engine(rank, 2, tmp_path) for rank in range(2)]
    start_all(engines)
    tensors = [array.array("f", [1.0]), array.array("f", [2.0])]

    def allreduce() -> None:
        handles = [submit(e, t) for e, t in zip(engines, tensors, strict=True)]
        assert [wait(e, h) for e, h in zip(engines, handles, strict=True)] == ["", ""]

    allreduce()
    assert open_sockets() - before
    rank_pid = os.getpid()

    def child() -> None:
        assert open_sockets() == before
        with pytest.raises(
            RuntimeError, match=rf"this is a fork of rank 1 \(pid {rank_pid}\)"
        ):
            submit(engines[1], tensors[1])
        engines[0].close(1.0)  # nothing happens
        engines.clear()

    assert in_child(child) == 0
    allreduce()
    for engine in engines:
        engine.close(5.0)


def test_the_transport_setting_lists_every_transport() -> None:
    choices = get_args(get_type_hints(Config)["transport"])
    assert set(choices) == {"auto", *transport_names()}
