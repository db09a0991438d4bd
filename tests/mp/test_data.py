"""Data of several ranks: in a job of bluecomm, and in one of torch only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import bluecomm as bf
from bluecomm.bench.data_loading.balance import Balance, measure
from bluecomm.bench.data_loading.cluster_reads import time_cluster_reads
from bluecomm.bench.data_loading.partitions import PartitionTimes, time_partitions
from tests.support.cluster_cache import LENGTH, Reader
from tests.support.deadlines import DEADLINE_S
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def error_of(call):
    """Return the text of the error of a call, or what it returns."""
    try:
        return call()
    except (ValueError, RuntimeError) as error:
        return str(error)


def sample(rank: int) -> list[object]:
    """Pass once over the data, then give rank 1 other data and another state."""
    sampler = bf.data.DistributedBatchSampler(range(11), 2)
    batches = list(sampler)
    length = 12 if rank == 1 else 11
    other = error_of(lambda: bf.data.DistributedBatchSampler(range(length), 2))
    sampler.load_state_dict(sampler.state_dict(1 + rank))
    loaded = error_of(lambda: list(sampler))
    balanced = bf.data.LoadBalancingBatchSampler(range(11), 2, cost=float)
    costs = error_of(
        lambda: bf.data.LoadBalancingSampler(range(11), lambda x: 1 / abs(x - 5))
    )
    return [batches, other, loaded, list(balanced), costs]


def lease(rank: int, barrier: Callable[[], object]) -> list[object]:
    """Share two epochs as leases, in step and not, and go on from a state."""
    options = {"num_workers": 0, "partition": "dynamic"}
    loader = bf.data.DataLoader(range(23), 2, **options)
    in_step = [batch.tolist() for batch in loader]
    uneven = bf.data.DataLoader(
        range(40), 2, uneven=True, lease_s=DEADLINE_S, **options
    )
    batches = iter(uneven)
    taken = next(batches).tolist()
    barrier()  # a fast rank would take all records before a slow one begins
    state = uneven.state_dict()
    rest = [batch.tolist() for batch in batches]
    uneven.load_state_dict({**state, "done": [[0, 2 * rank]]})
    loaded = error_of(lambda: next(iter(uneven)))
    uneven.load_state_dict({**state, "done": [[0, 30]]})
    resumed = [batch.tolist() for batch in uneven]
    return [in_step, [taken, *rest], loaded, resumed, uneven.epoch]


def check_leases(results: list[list[object]]) -> None:
    in_step, uneven, loaded, resumed, epochs = zip(*results, strict=True)
    assert [len(batches) for batches in in_step] == [4, 4, 4]
    for batches, length in ((in_step, 23), (uneven, 40), (resumed, 10)):
        indices = [index for each in batches for batch in each for index in batch]
        assert len(indices) == len({*indices}) == length
    assert all("different values of done" in text for text in loaded)
    assert epochs == (1, 1, 1)


def within_bluecomm() -> list[object]:
    return [*sample(bf.rank()), lease(bf.rank(), bf.barrier)]


def within_torch(folder: str) -> list[object]:
    """Meet by a file: the first free number is this rank's."""
    for rank in range(3):
        try:
            (Path(folder) / f"rank {rank}").mkdir()
            break
        except FileExistsError:
            continue
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3
    )
    try:
        return [rank, *sample(rank), lease(rank, dist.barrier)]
    finally:
        dist.destroy_process_group()


def check(results: list[list[object]]) -> None:
    for kind in (0, 3):
        batches = [each[kind] for each in results]
        assert {len(each) for each in batches} == {2}
        samples = [index for each in batches for batch in each for index in batch]
        assert sorted(samples) == list(range(11))
    for _, other, loaded, _, costs in results:
        assert "LoadBalancingSampler: cost failed on rank 1, first with" in costs
        assert "sample 5: ZeroDivisionError" in costs
        assert "DistributedBatchSampler: the ranks have different values of" in other
        assert "length: 11 on ranks 0, 2; 12 on rank 1" in other
        assert "DistributedBatchSampler.load_state_dict: the ranks have" in loaded
        assert "different values of phases: " in loaded


def test_ranks_of_bluecomm_share_an_epoch() -> None:
    results = run_ranks(3, within_bluecomm)
    check([rest for *rest, _ in results])
    check_leases([leases for *_, leases in results])


def test_ranks_of_torch_share_an_epoch(tmp_path: Path) -> None:
    results = run_ranks(3, within_torch, str(tmp_path), initialize=False)
    results.sort(key=lambda each: each[0])
    check([rest for _, *rest, _ in results])
    check_leases([leases for *_, leases in results])


def compare() -> tuple[list[Balance], list[PartitionTimes]]:
    return measure(10, 16, 2.0), time_partitions(3, 2, 2.0, 2)


def test_the_benchmark_compares_samplers_and_partitions() -> None:
    results, partitions = zip(*run_ranks(3, compare), strict=True)
    slowest = {one.sampler: one.slowest for one in results[0]}
    assert slowest["LoadBalancingBatchSampler"] < 1.02
    assert slowest["torch's DistributedSampler"] > 1.1
    assert slowest["DistributedBatchSampler"] > 1.1
    assert all(one.step_ms > 0 for each in results for one in each)
    names = [one.ranks for one in partitions[0]]
    assert names == ["equal", "equal, in step", "one slow"]
    for one in partitions[0]:
        assert len(one.static_s) == len(one.dynamic_s) == 2
        assert min(one.static_s + one.dynamic_s) >= 0.006


def read_from_the_cluster(folder: str) -> tuple[list[list[int]], int]:
    reader = Reader(Path(folder, "loaded"))
    parts = [reader.epoch(), reader.epoch()]
    reader.read(range(LENGTH))
    parts.append(reader.loaded())
    if bf.rank() == 1:
        reader.dataset.close()
    elif bf.rank() > 1:
        # The other machine is leaving meanwhile.
        for _ in range(2):
            reader.read(range(LENGTH))
    return parts, reader.dataset.failures


def test_machines_share_a_cache(tmp_path: Path) -> None:
    results = run_ranks(4, read_from_the_cluster, str(tmp_path), machines=[0, 0, 1, 1])
    for parts, failures in results:
        assert parts == [list(range(LENGTH)), [], []]
        assert failures == 0


def test_the_benchmark_reads_from_another_machine() -> None:
    first, second = run_ranks(2, time_cluster_reads, 4096, 2, 2, machines=[0, 1])
    assert [one.reader for one in first] == ["cluster, own", "cluster, other"]
    assert all(len(one.seconds) == 4 for one in first)
    assert second == []


class Draws:
    """A dataset of random numbers of the worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return int(torch.randint(2**40, ()))


def load() -> tuple[list[int], bf.Stats, str]:
    """Load with a worker after the same seed on all ranks; return what is counted."""
    torch.manual_seed(0)
    # The start method of the tests' ranks would have the worker import torch anew.
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    loader = bf.data.DataLoader(Draws(), batch_size=2, progress=True, **options)
    bf.reset_stats()
    drawn = [number for batch in loader for number in batch.tolist()]
    stats = bf.stats()
    bf.reset_stats()
    assert bf.stats().input == bf.InputStats()
    return drawn, stats, str(stats)


def test_waits_for_data_are_counted_and_in_the_timeline(tmp_path: Path) -> None:
    prefix = f"{tmp_path}/timeline-"
    results = run_ranks(2, load, environment={"BLUECOMM_TIMELINE": prefix})
    # Workers of different ranks draw different numbers.
    assert len({number for drawn, _, _ in results for number in drawn}) == 8
    for rank, (_, stats, text) in enumerate(results):
        assert (stats.input.batches, stats.input.samples) == (2, 4)
        assert 0 < stats.input.wait_s < stats.age_s
        assert "4 samples in 2 batches, " in text
        assert "of waiting for data" in text
        assert "wait for data" in Path(f"{prefix}{rank}.json").read_text()
