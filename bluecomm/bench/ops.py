"""``ops``: times each operation and its peers by size."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import bluecomm
from bluecomm import (
    DeviceStats,
    Min,
    allgather_object,
    allreduce,
    broadcast_object,
    init,
    local_device,
    local_size,
    rank,
    size,
)
from bluecomm.bench.arguments import add_outputs, count, positive, why_not_written
from bluecomm.bench.device_path import (
    NCCL,
    STAGED,
    UnexpectedPath,
    check_paths,
    device_counts,
    job_path,
    path_since,
)
from bluecomm.bench.memory import free_memory
from bluecomm.bench.operations import OPERATIONS, Case, bus_bandwidth, case_of
from bluecomm.bench.own import Bluecomm, may_use_nccl
from bluecomm.bench.peers import UnavailablePeer, start_peers
from bluecomm.bench.plot import BANDWIDTH, TIME, draw
from bluecomm.bench.results import (
    GLOO,
    LIMIT,
    MPI,
    Measurement,
    Results,
    spread,
)
from bluecomm.bench.sizes import parse_sizes, readable_size
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.table import print_table
from bluecomm.bench.timing import Implementation, measure
from bluecomm.runtime import current_communicator

_DEFAULT_OPERATIONS = ("allreduce_", "neighbor_allreduce", "one_peer", "one_peer_")
_DEFAULT_SIZES = ("4", "64K", "1M", "8M", "64M")
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
# Besides bluecomm itself.
_PEERS = (GLOO, MPI, LIMIT)

# Each implementation of a case holds an input, an output and a received tensor. Cases
# that need more than this part of the free memory are skipped.
_TENSORS_PER_IMPLEMENTATION = 3
_MEMORY_PART = 0.8


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "ops",
        help="time of each operation, gloo, MPI and the machine's limit, by size",
        description="Time operations, interleaved with those of peers in the same "
        "run. Start it with bfrun -np N.",
    )
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--operations",
        nargs="+",
        choices=["all", *OPERATIONS],
        default=list(_DEFAULT_OPERATIONS),
        metavar="NAME",
        help=f"all, or some of {' '.join(OPERATIONS)}; a trailing _ means in place "
        f"(default: {' '.join(_DEFAULT_OPERATIONS)})",
    )
    what.add_argument(
        "--sizes",
        nargs="+",
        type=_sizes,
        default=[parse_sizes(text) for text in _DEFAULT_SIZES],
        metavar="BYTES",
        help="such as 4 64K 0.5M, or 4..256M for sizes that grow by a factor of 4 "
        f"(default: {' '.join(_DEFAULT_SIZES)})",
    )
    what.add_argument(
        "--dtypes",
        nargs="+",
        choices=_DTYPES,
        default=["float32"],
        metavar="TYPE",
        help=f"some of {' '.join(_DTYPES)} (default: float32)",
    )
    what.add_argument(
        "--libraries",
        nargs="*",
        choices=_PEERS,
        metavar="NAME",
        help="the peers, some of gloo mpi limit (default: those that are available)",
    )
    what.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the tensors are; cuda: on the GPU of each rank, without peers "
        "(default: cpu)",
    )
    what.add_argument(
        "--write-inputs",
        action="store_true",
        help="write each input before each call, as training does, and count that "
        "time; not with limit",
    )
    _add_effort(parser.add_argument_group("how long"))
    _add_outputs(parser.add_argument_group("results"))
    parser.set_defaults(run=run)


def _sizes(text: str) -> list[int]:
    try:
        return parse_sizes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_effort(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rounds",
        type=count,
        default=9,
        help="number of rounds; every peer has a turn in each (default: 9)",
    )
    group.add_argument(
        "--round-s",
        type=positive,
        default=0.1,
        help="seconds per turn, which has at least one call (default: 0.1)",
    )


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    add_outputs(group, "time by size")
    group.add_argument(
        "--plot-bandwidth",
        type=Path,
        metavar="FILE",
        help="draw bus bandwidth by size to FILE",
    )


def run(args: argparse.Namespace) -> int:
    """Run the measurements of the command line and show them on rank 0."""
    torch.set_num_threads(1)
    init()
    if size() == 1:
        print("nothing to measure in a world of one; start it with bfrun -np N")
        return 2
    layout = list(current_communicator().layout.machine_of)
    cases, notes = _cases(args, layout)
    gpu = None
    if args.device == "cuda":
        device = local_device()
        if device.type == "cpu":
            return _give_up("--device cuda: this rank sees no GPU")
        gpu = device.index
    refusal = _refuse(args, cases, notes) if rank() == 0 else ""
    if refusal := broadcast_object(refusal):
        return _give_up(refusal)
    try:
        results = _measure_all(args, cases, layout, notes, gpu)
    except UnavailablePeer as error:
        return _give_up(str(error))
    except UnexpectedPath as error:
        _give_up(str(error))
        return 1
    if rank() != 0:
        return 0
    print_table(results)
    if args.json:
        results.save(args.json)
    if args.plot:
        draw(results, TIME).savefig(args.plot)
    if args.plot_bandwidth:
        draw(results, BANDWIDTH).savefig(args.plot_bandwidth)
    return 0


def _give_up(why: str) -> int:
    if rank() == 0:
        print(why, file=sys.stderr)
    return 2


def _refuse(
    args: argparse.Namespace, cases: Sequence[Case], notes: Sequence[str]
) -> str:
    """Return why the command line cannot be executed here; empty if it can."""
    if args.device == "cuda" and args.libraries:
        return "--libraries: the peers have no tensors on a GPU; leave the option out"
    if not cases:
        return f"nothing to measure: {'; '.join(notes)}"
    return why_not_written(args.json, args.plot, args.plot_bandwidth)


def _cases(
    args: argparse.Namespace, layout: Sequence[int]
) -> tuple[list[Case], list[str]]:
    """Return the cases that can be measured, and notes on those that cannot."""
    names = OPERATIONS if "all" in args.operations else args.operations
    sizes = sorted({nbytes for part in args.sizes for nbytes in part})
    cases = [
        dataclasses.replace(
            case_of(OPERATIONS[name], getattr(torch, dtype), nbytes, size()),
            is_written=args.write_inputs,
        )
        for name in names
        for dtype in args.dtypes
        for nbytes in sizes
    ]
    reasons = {case: case.why_not_on(layout) for case in cases}
    notes = [reason for reason in dict.fromkeys(reasons.values()) if reason]
    return [case for case, reason in reasons.items() if not reason], notes


def _measure_all(
    args: argparse.Namespace,
    cases: Sequence[Case],
    layout: list[int],
    notes: list[str],
    gpu: int | None,
) -> Results:
    measurements: list[Measurement] = []
    with contextlib.ExitStack() as stack:
        versions: dict[str, str] = {}
        implementations: list[Implementation] = [Bluecomm(shared=False, gpu=gpu)]
        if gpu is None:
            peers = start_peers(args.libraries, cases, stack, versions, notes)
            implementations = [*peers, *implementations, Bluecomm(shared=True)]
        before = None
        for case in cases:
            if rank() == 0 and case.operation != before:
                print(f"measuring {case.operation.title}", file=sys.stderr)
            before = case.operation
            if fits(case, len(implementations)):
                measurements += _measure(case, implementations, layout, args)
            else:
                notes.append(
                    f"{case.operation.name} with {readable_size(case.nbytes)}: "
                    "not enough memory"
                )
    about = _about(args, versions)
    return Results(layout, about, measurements, notes)


def fits(case: Case, implementations: int) -> bool:
    """Return whether the free memory of each machine suffices; collective."""
    wanted = local_size() * implementations * _TENSORS_PER_IMPLEMENTATION * case.nbytes
    fits = torch.tensor(int(wanted < _MEMORY_PART * free_memory()))
    return bool(allreduce(fits, op=Min, name="bench.fits"))


def _measure(
    case: Case,
    implementations: Sequence[Implementation],
    layout: Sequence[int],
    args: argparse.Namespace,
) -> list[Measurement]:
    prepared = [(each.name, each.prepare(case)) for each in implementations]
    there = [(name, turn) for name, turn in prepared if turn is not None]
    before = device_counts()
    times = measure([turn for _, turn in there], args.rounds, args.round_s)
    if args.device == "cuda":
        path = _path_of(case, before)
        there = [(f"{name}, {path}", turn) for name, turn in there]
    measurements = []
    for (name, _), times_us in zip(there, times, strict=True):
        numbers = spread(times_us)
        bandwidth = bus_bandwidth(
            case.operation, case.nbytes, numbers["median_us"], layout
        )
        measurements.append(
            Measurement(
                case.operation.name,
                name,
                case.dtype_name,
                case.nbytes,
                args.rounds,
                bus_gb_per_s=bandwidth,
                **numbers,
            )
        )
    return measurements


def _path_of(case: Case, before: DeviceStats) -> str:
    """Return how the tensors of a case have travelled; collective.

    Raises:
        UnexpectedPath: The job has asked for another path.
    """
    used = allgather_object(path_since(before), "bench.path")
    what = f"{case.operation.name} with {readable_size(case.nbytes)}"
    check_paths(what, used, job_path(), needs_nccl=may_use_nccl(case))
    return NCCL if NCCL in used else STAGED


def _about(args: argparse.Namespace, versions: dict[str, str]) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": now.isoformat(timespec="seconds"),
        "bluecomm": bluecomm.__version__,
        "libraries": versions,
        "cores": len(os.sched_getaffinity(0)),
        "transport": current_communicator().world.config.transport,
        "encryption": current_communicator().world.config.encryption,
        "device": args.device,
        "device_transport": job_path() if args.device == "cuda" else None,
        "round_s": args.round_s,
        "inputs_written": args.write_inputs,
    }
