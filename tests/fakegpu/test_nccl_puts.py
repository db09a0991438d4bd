"""NCCL's one-sided puts as the native code makes them, between ranks of a world."""

import ctypes

import pytest
import torch

import bluecomm as bf
from bluecomm._native import NcclPuts
from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.nccl import nccl_library
from bluecomm.device.point import wait_on_host
from bluecomm.device.staging_table import staging_of
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.fakegpu.waits import unneeded_waits, waits_of

pytestmark = pytest.mark.mp
COUNT = 4
NBYTES = 4 * COUNT


def staging() -> CudaStaging:
    found = staging_of(torch.zeros(1))
    assert isinstance(found, CudaStaging)
    return found


class Rank:
    """Memory with a part for each rank, and a last one to put from."""

    def __init__(self) -> None:
        library = nccl_library()
        assert library.has_puts
        unique_id = bf.broadcast_object(library.make_id(), 0)
        self.staging = staging()
        self.puts = NcclPuts(
            library=library,
            device=self.staging._device,
            nbytes=(bf.size() + 1) * NBYTES,
        )
        self.puts.connect(unique_id, bf.rank(), bf.size())

    def settle(self) -> None:
        wait_until(self.puts.advance, "NCCL is in progress", look_s=0.0001)

    def part(self, number: int) -> torch.Tensor:
        where = self.puts.address + number * NBYTES
        buffer = (ctypes.c_uint8 * NBYTES).from_address(where)
        return torch.frombuffer(buffer, dtype=torch.float32)

    def put(self, values: torch.Tensor, peer: int) -> None:
        self.part(bf.size()).copy_(values)
        stream = self.staging.current_stream()
        self.puts.put(peer, bf.size() * NBYTES, bf.rank() * NBYTES, NBYTES, stream)
        self.settle()
        point = self.puts.point()

        def has_ended() -> bool:
            if point.poll() is not None:
                return True
            assert self.puts.advance()  # raises what has failed
            return False

        wait_until(has_ended, "the put has not ended", look_s=0.0001)

    def follow(self, peer: int, count: int = 1) -> None:
        """Let the current stream follow puts of a rank."""
        self.puts.await_puts(peer, count)
        self.settle()
        self.staging.follow(self.puts.point())

    def close(self) -> None:
        self.puts.close()
        self.settle()

    def abort(self) -> None:
        """End the communicator; then the memory may be freed at any time."""
        self.puts.abort()
        for point in (self.puts.point(), self.staging.point()):
            if point is not None:
                wait_on_host(point, "abort", DEADLINE_S)


def put_around(rounds: int) -> list[torch.Tensor]:
    """Put to the next rank in each round, and return what the one before has put."""
    own = Rank()
    own.settle()
    left, right = (bf.rank() - 1) % bf.size(), (bf.rank() + 1) % bf.size()
    found = []
    for number in range(rounds):
        own.put(torch.arange(4.0) + 10 * number + 100 * bf.rank(), right)
        bf.barrier()
        own.follow(left)
        found.append(own.part(left) * 1)
        wait_on_host(own.staging.point(), "read", DEADLINE_S)
        bf.barrier()  # the next put may come
    own.close()
    return found


def check(seed: int = 0, environment: dict[str, str] | None = None) -> None:
    ranks = run_ranks_on_gpus(3, put_around, 3, seed=seed, environment=environment)
    for rank, found in enumerate(ranks):
        left = (rank - 1) % 3
        expected = [torch.arange(4.0) + 10 * n + 100 * left for n in range(3)]
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_stream_that_follows_a_put_sees_its_values(seed):
    check(seed)


def test_each_wait_is_needed(tmp_path):
    def run(environment: dict[str, str]) -> None:
        check(environment=environment)

    waits = waits_of(run, tmp_path / "sites")
    assert any("ncclWaitSignal" in one for one in waits)
    assert sum("cuStreamWaitEvent" in one for one in waits) == 2
    assert not unneeded_waits(run, waits)


def fail_to_put() -> str:
    """Return the text of an error that NCCL injects into the second put of rank 0."""
    own = Rank()
    own.settle()
    text = ""
    if bf.rank() == 0:
        set_fake(FAIL="ncclPutSignal:2=async6")
        own.put(torch.ones(4), 1)
        with pytest.raises(RuntimeError, match="NCCL's communicator") as failure:
            own.put(torch.ones(4), 1)
        text = str(failure.value)
        with pytest.raises(RuntimeError, match="aborted"):
            own.puts.advance()
        with pytest.raises(RuntimeError, match="aborted"):
            own.puts.put(1, 0, 0, NBYTES, 0)
    bf.barrier()
    own.abort()
    return text


def test_an_error_of_a_put_ends_the_communicator():
    first, _ = run_ranks_on_gpus(2, fail_to_put)
    assert "remote process exited" in first


def have_no_windows() -> str:
    own = Rank()
    with pytest.raises(RuntimeError) as failure:
        own.settle()
    bf.barrier()  # a rank that has left is another error
    return str(failure.value)


def test_hardware_without_puts_is_an_error():
    texts = run_ranks_on_gpus(
        2, have_no_windows, environment={"FAKEGPU_NCCL_WINDOWS": "0"}
    )
    # The first rank that fails ends the communicator, which is the other's error.
    own = ["returned no window" in text for text in texts]
    ended = ["remote process exited" in text for text in texts]
    assert any(own)
    assert all(one or other for one, other in zip(own, ended, strict=True))


def is_too_old() -> None:
    library = nccl_library()
    assert not library.has_puts
    expected = (
        r"NCCL 2\.28\.9 has no one-sided puts, which need 2\.29\.2 or newer; install "
        "a newer one, or unset BLUECOMM_WINDOWS"
    )
    with pytest.raises(RuntimeError, match=expected):
        NcclPuts(library=library, device=staging()._device, nbytes=8)
    assert not load().violations()


def test_old_versions_are_refused():
    environment = {"FAKEGPU_NCCL_VERSION": "22809"}
    run_ranks_on_gpus(1, is_too_old, environment=environment)
