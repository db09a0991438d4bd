"""``python -m bluecomm.bench ops``: a short run of each case, and its limits."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch

import bluecomm as bf
from bluecomm.bench import limit
from bluecomm.bench.__main__ import main
from bluecomm.bench.limit import MemoryLimit, StreamLimit
from bluecomm.bench.mpi import Mpi, why_not_here
from bluecomm.bench.operations import OPERATIONS, case_of
from bluecomm.bench.ops import fits
from bluecomm.bench.own import Bluecomm
from bluecomm.bench.peers import UnavailablePeer, start_peers
from bluecomm.bench.results import load
from bluecomm.bench.timing import Implementation
from bluecomm.runtime import current_communicator
from tests.support.launch import run_bfrun
from tests.support.ranks import run_ranks
from tests.support.stand_in import replace_in

pytestmark = pytest.mark.mp

DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"]


def run_bench(
    folder: Path, *arguments: str, ranks: int = 2, options: tuple[str, ...] = ()
) -> str:
    job = run_bfrun(
        folder,
        *("-np", str(ranks), *options, sys.executable, "-m", "bluecomm.bench"),
        *arguments,
        *("--rounds", "1", "--round-s", "0.0001"),
    )
    assert job.process.returncode == 0, job.err
    return job.out


def test_measures_each_operation_and_type(tmp_path: Path) -> None:
    file, plot = tmp_path / "result.json", tmp_path / "result.png"
    out = run_bench(
        tmp_path,
        *("ops", "--operations", "all", "--sizes", "4", "4K", "--dtypes", *DTYPES),
        *("--libraries", "gloo", "limit", "--json", str(file), "--plot", str(plot)),
    )
    assert "on 2 ranks on 1 machine" in out
    found = load(file).by_case()
    floating = {"float32", "float64", "float16", "bfloat16"}
    assert set(found) == {
        (name, dtype, case_of(operation, getattr(torch, dtype), nbytes, 2).nbytes)
        for name, operation in OPERATIONS.items()
        for dtype in DTYPES
        for nbytes in (4, 4096)
        # There is one machine.
        if name != "hierarchical_neighbor_allreduce"
        and (dtype in floating or not operation.is_weighted)
    }
    for case, implementations in found.items():
        expected = ["gloo", "limit", "bluecomm", "bluecomm, shared"]
        if OPERATIONS[case[0]].is_one_sided:
            expected = ["limit", "bluecomm"]
        assert list(implementations) == expected, case
        assert all(
            m.min_us > 0 and m.bus_gb_per_s > 0 for m in implementations.values()
        )
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--json", "no/such/x.json"), "does not exist"),
        (("--write-inputs", "--libraries", "limit"), "limit does not write inputs"),
        (("--dtypes", "int32", "--operations", "one_peer"), "average of integers"),
        (
            ("--operations", "hierarchical_neighbor_allreduce"),
            "nothing to measure: hierarchical_neighbor_allreduce needs more than one",
        ),
    ],
)
def test_impossible_options_are_refused_at_the_start(
    tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    bench = (sys.executable, "-m", "bluecomm.bench", "ops")
    job = run_bfrun(tmp_path, "-np", "2", *bench, *options)
    assert job.process.returncode == 2
    (line,) = [line for line in job.err.splitlines() if line.startswith("[")]
    assert line.startswith("[0] ")
    assert text in line


def test_inputs_may_be_written(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    out = run_bench(
        tmp_path,
        *("ops", "--operations", "all", "--sizes", "4K", "--write-inputs"),
        *("--libraries", "gloo", "mpi", "--json", str(file)),
    )
    assert "inputs written before each call" in " ".join(out.split())
    results = load(file)
    assert results.about["inputs_written"]
    both = set(results.by_case()["allreduce_", "float32", 4096])
    assert both == {"gloo", "mpi", "bluecomm", "bluecomm, shared"}


def test_measures_between_simulated_machines(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    run_bench(
        tmp_path,
        *("--operations", "hierarchical_neighbor_allreduce", "--sizes", "4K"),
        *("--libraries", "gloo", "limit", "--json", str(file)),
        ranks=4,
        options=("--ranks-per-machine", "2", "--oversubscribe"),
    )
    results = load(file)
    assert results.layout == [0, 0, 1, 1]
    (implementations,) = results.by_case().values()
    assert list(implementations) == ["gloo", "bluecomm", "bluecomm, shared"]


def turn_all(make: str) -> list[str]:
    """Run each case once; return the operations measured."""
    implementation: Implementation
    if make == "streams":
        implementation = StreamLimit()
    elif make == "mpi":
        implementation = Mpi(bf.size())
    elif make == "memory":
        implementation = MemoryLimit(3000)
    else:
        implementation = Bluecomm(shared=make == "shared")
    measured = []
    layout = current_communicator().layout.machine_of
    for name, operation in OPERATIONS.items():
        case = case_of(operation, torch.float32, 3000, bf.size())
        turn = None if case.why_not_on(layout) else implementation.prepare(case)
        if turn is not None:
            assert turn(2) >= 0
            measured.append(name)
    if isinstance(implementation, (StreamLimit, Mpi)):
        implementation.close()
    return measured


@pytest.mark.parametrize("world_size", [2, 3])
def test_streams_between_machines(world_size: int) -> None:
    machines = list(range(world_size))
    for measured in run_ranks(world_size, turn_all, "streams", machines=machines):
        assert measured == list(OPERATIONS)


def test_mpi_takes_turns() -> None:
    assert why_not_here() == "", "the extra [bench] brings an MPI"
    has_all_but = [
        name
        for name, operation in OPERATIONS.items()
        if not (operation.is_one_sided or name.startswith("hierarchical"))
    ]
    for measured in run_ranks(2, turn_all, "mpi"):
        assert measured == has_all_but


@pytest.mark.parametrize("implementation", ["shared", "memory"])
def test_a_last_rank_without_a_partner_takes_part(implementation: str) -> None:
    for measured in run_ranks(3, turn_all, implementation):
        assert "pair_gossip" in measured


def values(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) % 100 + 1000 * rank


def check_limit(count: int) -> None:
    limit = MemoryLimit(4 * count)
    everyone = [values(rank, count) for rank in range(bf.size())]
    array = limit.array(torch.float32)
    assert len(array) == count

    array.copy_(everyone[bf.rank()])
    bf.barrier()
    turn = limit.prepare(case_of(OPERATIONS["allreduce_"], torch.float32, 4 * count, 2))
    assert turn is not None
    turn(1)
    assert torch.equal(array, sum(everyone[1:], everyone[0]))


@pytest.mark.parametrize("count", [1, 1000, 100_003])
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_limit_is_a_true_allreduce(world_size: int, count: int) -> None:
    run_ranks(world_size, check_limit, count)


def check_that_all_are_told() -> None:
    with pytest.raises(OSError, match=r"memory of rank 0: rank 1: .*gone"):
        MemoryLimit(4096)


def open_nothing(path: str, *arguments: object) -> int:
    raise OSError(f"{path}: gone")


def fail_to_map() -> None:
    patch = pytest.MonkeyPatch()
    if bf.rank() == 1:
        replace_in(patch, limit, "os", open=open_nothing)
    try:
        check_that_all_are_told()
    finally:
        patch.undo()


def test_all_ranks_report_that_one_cannot_map() -> None:
    run_ranks(2, fail_to_map)


def only_rank_1_shifts(other_closes: bool) -> str:
    streams = StreamLimit()
    bf.barrier()
    case = case_of(OPERATIONS["one_peer"], torch.float32, 1000, 2)
    turn = streams.prepare(case)
    said = ""
    if bf.rank() == 0 and other_closes:
        streams.close()
    elif bf.rank() == 1:
        patch = pytest.MonkeyPatch()
        if not other_closes:
            patch.setattr("bluecomm.bench.limit._STREAM_LIMIT_S", 0.1)
        patch.setattr("bluecomm.bench.timing.barrier", lambda: None)
        assert turn is not None
        try:
            turn(1)
        except OSError as error:
            said = str(error)
        patch.undo()
    bf.barrier()
    streams.close()
    return said


@pytest.mark.parametrize(
    ("other_closes", "text"),
    [
        (True, "rank 0 closed its stream to 1"),
        (False, "rank 1 received 0 of 1000 bytes from rank 0 within 0.1 s"),
    ],
)
def test_streams_have_a_deadline(other_closes: bool, text: str) -> None:
    assert run_ranks(2, only_rank_1_shifts, other_closes, machines=[0, 1])[1] == text


def ask_for(name: str) -> str:
    case = case_of(OPERATIONS["allreduce"], torch.float32, 1000, bf.size())
    patch = pytest.MonkeyPatch()
    patch.setattr("bluecomm.bench.peers.why_not_here", lambda: "no mpi4py")
    try:
        with contextlib.ExitStack() as stack:
            list(start_peers([name], [case], stack, {}, []))
    except UnavailablePeer as error:
        return str(error)
    finally:
        patch.undo()
    return ""


@pytest.mark.parametrize(
    ("name", "machines", "text"),
    [
        ("mpi", [0, 0], "--libraries mpi: no mpi4py"),
        ("mpi", [0, 1], "--libraries mpi: MPI is measured only on one machine"),
        (
            *("limit", [0, 0, 1]),
            "--libraries limit: between machines the limit needs one rank per machine",
        ),
        ("limit", [0, 1], ""),
    ],
)
def test_missing_requirements_are_errors(
    name: str, machines: list[int], text: str
) -> None:
    found = run_ranks(len(machines), ask_for, name, machines=machines)
    assert found == [text] * len(machines)


def run_without_mpi() -> int:
    patch = pytest.MonkeyPatch()
    patch.setattr("bluecomm.bench.peers.why_not_here", lambda: "no mpi4py")
    try:
        return main(["ops", "--libraries", "mpi"])
    finally:
        patch.undo()


def test_nothing_is_measured_if_a_requirement_is_missing() -> None:
    assert run_ranks(2, run_without_mpi) == [2, 2]


def fit() -> list[bool]:
    return [
        fits(case_of(OPERATIONS["allreduce"], torch.float32, nbytes, 2), 5)
        for nbytes in (4, 1 << 50)
    ]


def test_sizes_that_do_not_fit_are_refused() -> None:
    assert run_ranks(2, fit) == [[True, False]] * 2
