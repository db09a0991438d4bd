"""The fake's streams, events and memory: order, and misuse that is reported."""

import ctypes
import os
import signal
import subprocess
import sys

import pytest

from tests.support.fakegpu.device import NOT_READY, CudaError, Device, call
from tests.support.python_path import python_path

SMALL = 64
LARGE = 1 << 16


@pytest.fixture
def device(monkeypatch):
    for name in [name for name in os.environ if name.startswith("FAKEGPU_")]:
        monkeypatch.delenv(name)
    return Device()


def test_a_stream_runs_its_work_in_order_and_late(device):
    stream = device.stream()
    memory = device.allocate(SMALL)
    device.hold(stream)
    for value in (1, 2, 3):
        device.fill(memory, value, SMALL, stream)
    done = device.record(stream)
    with pytest.raises(CudaError) as not_ready:
        call("cuEventQuery", done)
    assert not_ready.value.code == NOT_READY
    device.hold(stream, False)
    call("cuEventSynchronize", done)
    assert device.read(memory, SMALL, stream) == bytes([3]) * SMALL
    assert device.violations() == []


def test_an_event_orders_two_streams(device):
    first, second = device.stream(), device.stream()
    memory, result = device.allocate(SMALL), device.allocate(SMALL)
    device.hold(first)
    device.fill(memory, 7, SMALL, first)
    device.wait(second, device.record(first))
    device.copy(result, memory, SMALL, second)
    with pytest.raises(CudaError):
        call("cuStreamQuery", second)
    device.hold(first, False)
    assert device.read(result, SMALL, second) == bytes([7]) * SMALL
    assert device.violations() == []


def test_a_missing_wait_is_a_race_and_reads_old_data(device):
    first, second = device.stream(), device.stream()
    memory, result = device.allocate(SMALL), device.allocate(SMALL)
    device.hold(first)
    device.fill(memory, 7, SMALL, first)
    device.copy(result, memory, SMALL, second)
    assert device.read(result, SMALL, second) != bytes([7]) * SMALL
    device.hold(first, False)
    [text] = device.violations()
    assert "race: this read is not ordered after the write by cuMemsetD8Async" in text


@pytest.mark.parametrize("by", ["cuStreamSynchronize", "cuEventSynchronize", "polls"])
def test_a_wait_of_the_host_orders_as_well(device, by):
    first, second = device.stream(), device.stream()
    memory = device.allocate(SMALL)
    device.fill(memory, 7, SMALL, first)
    event = device.record(first)
    if by == "cuStreamSynchronize":
        call(by, first)
    elif by == "cuEventSynchronize":
        call(by, event)
    else:
        while device.libraries.cuda.cuEventQuery(event) == NOT_READY:
            pass
    device.fill(memory, 8, SMALL, second)
    assert device.violations() == []


def test_a_wait_that_is_ignored_orders_nothing(device, monkeypatch, tmp_path):
    """The key of a call site is in the file of all sites."""
    first, second = device.stream(), device.stream()
    memory = device.allocate(SMALL)

    def run(label):
        device.libraries.reset()
        device.libraries.cuda.fakegpu_site(label)
        device.fill(memory, 1, SMALL, first)
        device.wait(second, device.record(first))
        device.fill(memory, 2, SMALL, second)
        device.wait(first, device.record(second))
        return device.violations()

    monkeypatch.setenv("FAKEGPU_WAITS", str(tmp_path / "waits"))
    assert run(b"one") == []
    assert run(b"two") == []
    sites = [line.split() for line in (tmp_path / "waits").read_text().splitlines()]
    assert [site[1:3] for site in sites] == [
        ["cuStreamWaitEvent", "one"],
        ["cuStreamWaitEvent", "two"],
    ]
    monkeypatch.setenv("FAKEGPU_IGNORE_WAIT", sites[0][0])
    assert run(b"two") == []
    assert any("race" in text for text in run(b"one"))
    device.libraries.cuda.fakegpu_site(b"")


def test_interleavings_differ_by_seed(device, monkeypatch):
    """Four streams append their numbers to one list."""
    monkeypatch.setenv("FAKEGPU_DELAY_US", "3000")
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def order(seed):
        monkeypatch.setenv("FAKEGPU_SEED", str(seed))
        device.libraries.reset()
        seen = []
        notes = [kind(lambda _, i=i: seen.append(i)) for i in range(4)]
        streams = [device.stream() for _ in notes]
        for stream, note in [*zip(streams, notes, strict=True)] * 4:
            function = ctypes.cast(note, ctypes.c_void_p)
            call("cuLaunchHostFunc", stream, function, None)
        for stream in streams:
            call("cuStreamSynchronize", stream)
        return tuple(seen)

    orders = {order(seed) for seed in range(6)}
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {
        (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4
    }


def test_use_after_free_and_a_free_too_early_are_reported(device):
    stream = device.stream()
    memory = device.allocate(SMALL)
    device.fill(memory, 1, SMALL, stream)
    call("cuMemFree_v2", memory)
    assert (
        "cuMemFree: race: this write is not ordered after the write by"
        in (device.violations()[0])
    )
    with pytest.raises(CudaError):
        device.fill(memory, 2, SMALL, stream)
    # The first write may come after the memory was freed, which is reported, too.
    # Without the wait, the next test could get that report.
    call("cuStreamSynchronize", stream)
    assert "use after free by cuMemFree" in "\n".join(device.violations()[1:])
    with pytest.raises(CudaError):
        call("cuMemFree_v2", memory)


def test_a_tensor_is_freed_in_the_order_of_its_stream(device):
    """Its memory may be used again by later work of this stream, and no other."""
    user, other = device.stream(), device.stream()
    for has_wait in (True, False):
        memory, copy = device.allocate(SMALL), device.allocate(SMALL)
        device.fill(memory, 1, SMALL, user)
        device.wait(other, device.record(user))
        device.copy(copy, memory, SMALL, other)
        if has_wait:
            device.wait(user, device.record(other))
        device.libraries.cuda.fakegpu_free_on(user, memory)
        assert (device.violations() == []) is has_wait


def test_memory_written_after_it_was_freed_is_found(device):
    memory = device.pinned(b"abc")
    call("cuMemFreeHost", memory)
    ctypes.memset(memory + 1, 0, 1)
    assert device.violations() == [
        "cuMemFreeHost: its memory was written after it was freed: byte 1"
    ]


@pytest.mark.parametrize(
    ("misuse", "text"),
    [
        (lambda d: d.fill(d.allocate(8), 0, 9, d.stream()), "beyond the end"),
        (lambda d: d.fill(4096, 0, 1, d.stream()), "not device memory"),
        (lambda d: call("cuStreamSynchronize", 4096), "not a stream"),
        (lambda d: call("cuEventQuery", 4096), "not an event"),
        (
            lambda d: call("cuStreamCreateWithPriority", ctypes.c_void_p(), 0, 0),
            "CU_STREAM_NON_BLOCKING",
        ),
        (lambda d: call("cuMemFree_v2", 4096), "not the address of an allocation"),
        (
            lambda d: [call("cuCtxSetCurrent", None), d.stream()],
            "no context is current",
        ),
    ],
)
def test_misuse_is_an_error_and_reported(device, misuse, text):
    with pytest.raises(CudaError):
        misuse(device)
    assert text in device.violations()[0]


def test_a_wait_for_an_event_without_a_record_is_reported(device):
    device.wait(device.stream(), device.event())
    assert "never recorded" in device.violations()[0]


def test_calls_are_refused_while_a_stream_captures(device):
    stream = device.stream()
    event = device.record(stream)
    device.libraries.cuda.fakegpu_set_capturing(stream, 1)
    with pytest.raises(CudaError, match="900"):
        call("cuEventQuery", event)
    mode = ctypes.c_int(2)  # relaxed
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    call("cuEventSynchronize", event)
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    device.libraries.cuda.fakegpu_set_capturing(stream, 0)
    assert len(device.violations()) == 1


def test_cuda_in_a_host_function_is_reported(device):
    stream = device.stream()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    body = kind(lambda _: device.libraries.cuda.cuCtxGetCurrent(None) and None)
    call("cuLaunchHostFunc", stream, ctypes.cast(body, ctypes.c_void_p), None)
    call("cuStreamSynchronize", stream)
    assert "inside a function of cuLaunchHostFunc" in device.violations()[0]


def test_errors_are_injected_and_kernels_faults_stay(device, monkeypatch):
    monkeypatch.setenv("FAKEGPU_FAIL", "cuMemAlloc:2=2,cuEventCreate:1=719")
    device.libraries.reset()
    device.allocate(SMALL)
    with pytest.raises(CudaError, match="returned 2"):
        device.allocate(SMALL)
    device.allocate(SMALL)
    with pytest.raises(CudaError, match="719"):
        device.event()
    device.libraries.cuda.fakegpu_break(700)
    with pytest.raises(CudaError, match="700"):
        device.allocate(SMALL)
    assert device.violations() == []


def in_a_process_of_its_own(body):
    code = f"from tests.support.fakegpu.device import *\nd = Device()\n{body}"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_host_cannot_touch_device_memory(device):
    done = in_a_process_of_its_own(
        "import ctypes\nmemory = d.allocate(8)\nprint(ctypes.string_at(memory, 8))"
    )
    assert done.returncode == -signal.SIGSEGV


def test_a_forked_child_may_not_use_cuda(device):
    done = in_a_process_of_its_own(
        "import os\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        d.allocate(8)\n"
        "    except CudaError as error:\n"
        "        os._exit(error.code)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    assert done.stdout.strip() == "3"
