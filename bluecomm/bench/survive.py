"""``survive``: kills and stops ranks of jobs, and measures how the others go on."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import sys
from collections.abc import Iterator, Mapping

import bluecomm
from bfrun.wording import count as count_of
from bluecomm import algorithm_names
from bluecomm.bench.arguments import add_outputs, count, positive, why_not_written
from bluecomm.bench.ending import exit_at_sigterm
from bluecomm.bench.subcommand import Subparsers
from bluecomm.bench.survival import torchft
from bluecomm.bench.survival.faults import BY_NAME, FAULTS, NONE, Fault
from bluecomm.bench.survival.goodput import (
    RESPAWN_S,
    Goodput,
    Kills,
    measure_goodput,
    measure_restarts,
)
from bluecomm.bench.survival.job import JOB_NAME, JobEffort, run_job, with_bfrun
from bluecomm.bench.survival.joins import LAYERS as JOIN_LAYERS
from bluecomm.bench.survival.joins import RANKS as JOIN_RANKS
from bluecomm.bench.survival.joins import JoinPause, measure_join
from bluecomm.bench.survival.outcome import Outcome, expected_values, judge
from bluecomm.bench.survival.plot import draw_gaps
from bluecomm.bench.survival.report import SurvivalReport, verdict
from bluecomm.bench.survival.speed import Cost, measure_cost
from bluecomm.bench.survival.torchrun import PeerOutcome, measure_ddp
from bluecomm.bench.training.contenders import Contender
from bluecomm.bench.training.models import equal_layers
from bluecomm.optim.registry import get_algorithm, names_that_survive_losses

_TRANSPORTS = ("shm", "tcp")
_BEFORE = 20
_COST_STEPS = 200
_GOODPUT_RANKS = 8
# Seconds of training after bfrun is back.
_ATTACHED_S = 10.0


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "survive",
        help="gaps and lost steps of the other ranks after kill -9 and SIGSTOP",
        description="Start jobs with bfrun --on-failure continue on this machine, kill "
        "or stop some of their ranks, and measure how the others go on. Start it "
        "without bfrun.",
    )
    parser.add_argument(
        "--faults",
        nargs="*",
        choices=[fault.name for fault in FAULTS],
        default=[fault.name for fault in FAULTS],
        metavar="NAME",
        help=f"some of {' '.join(fault.name for fault in FAULTS)} (default: all)",
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        type=_label,
        default=algorithm_names(),
        metavar="NAME[:OPTION]",
        help="as for train; algorithms that survival does not cover are only listed, "
        "and those with windows left out, because their values depend on the speed of "
        "the ranks (default: all)",
    )
    parser.add_argument(
        "--transports",
        nargs="+",
        choices=_TRANSPORTS,
        default=list(_TRANSPORTS),
        help="transports between the ranks (default: shm tcp)",
    )
    parser.add_argument(
        "--rounds", type=count, default=1, help="jobs for each case (default: 1)"
    )
    parser.add_argument(
        "--step-ms",
        type=positive,
        default=50.0,
        help="milliseconds of an emulated step, which uses no core (default: 50)",
    )
    parser.add_argument(
        "--layers",
        type=_layers,
        default="4x1M",
        metavar="NxSIZE",
        help="N equal layers of SIZE bytes (default: 4x1M)",
    )
    parser.add_argument(
        "--steps", type=count, default=60, help="steps after the fault (default: 60)"
    )
    parser.add_argument(
        "--load-s",
        type=positive,
        default=10.0,
        help="seconds that the fault load lasts (default: 10)",
    )
    parser.add_argument(
        "--detached-s",
        type=positive,
        default=10.0,
        help="seconds without bfrun, for the fault detach (default: 10)",
    )
    _add_speed(parser.add_argument_group("speed"))
    parser.add_argument(
        "--peers",
        action="store_true",
        help="also kill a rank of DDP over gloo, under torchrun, and of torchft if "
        "that is installed; with --goodput-every, one after another under torchrun",
    )
    add_outputs(parser, "the gaps by fault")
    parser.set_defaults(run=run)


def _add_speed(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--cost-rounds",
        type=int,
        default=0,
        metavar="N",
        help="also time N pairs of jobs with and without survival, in which nothing "
        "fails (default: 0)",
    )
    group.add_argument(
        "--cost-step-ms",
        type=positive,
        default=10.0,
        help="milliseconds of their steps (default: 10)",
    )
    group.add_argument(
        "--goodput-every",
        type=positive,
        metavar="S",
        help=f"also kill a rank of {_GOODPUT_RANKS} every S seconds, which is started "
        f"again {RESPAWN_S:g} s later and joins, and compare the pace of the others "
        "with that of a job without failures",
    )
    group.add_argument(
        "--goodput-kills",
        type=count,
        default=_GOODPUT_RANKS,
        metavar="N",
        help=f"number of these kills (default: {_GOODPUT_RANKS})",
    )
    group.add_argument(
        "--join-rounds",
        type=int,
        default=0,
        metavar="N",
        help=f"also kill one of {JOIN_RANKS} ranks, and measure how the others pause "
        "while it joins again, in N jobs (default: 0)",
    )
    group.add_argument(
        "--join-layers",
        type=_layers,
        default=JOIN_LAYERS,
        metavar="NxSIZE",
        help=f"their model (default: {JOIN_LAYERS})",
    )


def _label(text: str) -> str:
    try:
        return Contender.parse(text).label
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _layers(text: str) -> str:
    try:
        equal_layers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(args: argparse.Namespace) -> int:
    """Run the jobs of the command line and print tables.

    Returns:
        0 if all survivors went on as they should, whatever the gaps are.
    """
    refusal = why_not_written(args.json, args.plot)
    if "BLUECOMM_AGENT_SOCKET" in os.environ:
        refusal = "survive starts its own jobs; start it without bfrun"
    if args.plot and not args.faults:
        refusal = "--plot draws the gaps after faults; name --faults"
    if refusal:
        print(f"survive: {refusal}", file=sys.stderr)
        return 2
    exit_at_sigterm()
    names = names_that_survive_losses()
    by_name = [(Contender.parse(one).name, one) for one in args.algorithms]
    covered = [
        label
        for name, label in by_name
        if name in names and not get_algorithm(name).has_windows
    ]
    about = _about(args)
    outcomes: list[Outcome] = []
    costs: list[Cost] = []
    goodputs: list[Goodput] = []
    joins: list[JoinPause] = []
    peers: list[PeerOutcome] = []
    failure = None
    try:
        # If a job fails, the lists keep the results of the jobs before it.
        if args.faults:
            outcomes.extend(_outcomes(args, covered))
        if args.cost_rounds:
            costs.extend(_costs(args, covered))
        if args.goodput_every:
            goodputs.extend(_goodputs(args, covered))
        if args.join_rounds:
            joins.extend(_joins(args, covered))
        if args.peers:
            peers.extend(_peers(args))
    except RuntimeError as error:
        failure = error
    report = SurvivalReport(
        about={**about, "load_after": os.getloadavg()[0]},
        outcomes=outcomes,
        costs=costs,
        goodputs=goodputs,
        joins=joins,
        peers=peers,
        not_covered=[label for name, label in by_name if name not in names],
    )
    report.print()
    if args.json:
        report.write(args.json)
    if args.plot and outcomes:
        draw_gaps(report).savefig(args.plot)
    if failure is not None:
        print(f"survive: the rest was not measured: {failure}", file=sys.stderr)
    return 1 if failure is not None or report.failures else 0


def _about(args: argparse.Namespace) -> dict[str, object]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": now.isoformat(timespec="seconds"),
        "bluecomm": bluecomm.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "step_ms": args.step_ms,
        "layers": args.layers,
        "steps": args.steps,
    }


def _effort(args: argparse.Namespace) -> JobEffort:
    return JobEffort(_BEFORE, args.steps, args.step_ms, args.layers)


def _outcomes(args: argparse.Namespace, covered: list[str]) -> Iterator[Outcome]:
    """Run each fault with each algorithm over each transport."""
    expected = {label: _values(args, label) for label in covered}
    for fault in (BY_NAME[name] for name in args.faults):
        for label in covered:
            for transport in args.transports:
                for _ in range(args.rounds):
                    yield _outcome(args, fault, label, transport, expected[label])


def _outcome(
    args: argparse.Namespace,
    fault: Fault,
    label: str,
    transport: str,
    expected: Mapping[int, float],
) -> Outcome:
    effort = _effort(args)
    options: tuple[str, ...] = ()
    if fault.action == "load":
        effort = effort.lasting(args.load_s)
    elif fault.action == "detach":
        fault = dataclasses.replace(fault, seconds=args.detached_s)
        effort = effort.with_steps_for(args.detached_s + _ATTACHED_S)
        options = ("--job-name", JOB_NAME)
    command = with_bfrun(label, transport, fault.ranks, options=options)
    found = judge(run_job(command, fault, effort), fault, expected)
    _say(
        f"{fault.title}, {label}, {transport}: {found.gap_ms:.0f} ms, {verdict(found)}"
    )
    return found


def _values(args: argparse.Namespace, label: str) -> Mapping[int, float]:
    """Return the parameters after each step of a job in which nothing fails."""
    _say(f"nothing fails, {label}")
    command = with_bfrun(label, args.transports[0], NONE.ranks)
    record = run_job(command, NONE, _effort(args))
    if record.exit_code != 0:
        raise RuntimeError(
            f"{label}: the job without a fault ended with {record.exit_code}; find out "
            "why before measuring faults"
        )
    return expected_values(record.logs)


def _costs(args: argparse.Namespace, covered: list[str]) -> Iterator[Cost]:
    effort = JobEffort(_BEFORE, _COST_STEPS, args.cost_step_ms, args.layers)
    for label in covered:
        for transport in args.transports:
            _say(f"cost of survival, {label}, {transport}")
            yield measure_cost(label, transport, NONE.ranks, effort, args.cost_rounds)


def _goodputs(args: argparse.Namespace, covered: list[str]) -> Iterator[Goodput]:
    effort, ranks = _effort(args), _GOODPUT_RANKS
    kills = Kills(args.goodput_kills, args.goodput_every)
    for label in _with_newcomers(covered):
        for transport in args.transports:
            _say(f"repeated failures, {label}, {transport}")
            yield measure_goodput(label, transport, ranks, effort, kills)
    if args.peers:
        _say("repeated failures, torchrun")
        yield measure_restarts(ranks, effort, kills)


def _joins(args: argparse.Namespace, covered: list[str]) -> Iterator[JoinPause]:
    effort = dataclasses.replace(_effort(args), layers=args.join_layers)
    for label in _with_newcomers(covered):
        for transport in args.transports:
            command = with_bfrun(label, transport, JOIN_RANKS, options=("--respawn",))
            for _ in range(args.join_rounds):
                _say(f"join, {label}, {transport}")
                yield measure_join(command, effort)


def _with_newcomers(labels: list[str]) -> list[str]:
    """Return the contenders that newcomers can join."""
    return [
        label
        for label in labels
        if get_algorithm(Contender.parse(label).name).admits_newcomers
    ]


def _peers(args: argparse.Namespace) -> Iterator[PeerOutcome]:
    for restarts in (0, 1):
        _say(f"torchrun, {count_of(restarts, 'restart')}")
        yield measure_ddp(BY_NAME["kill"], _effort(args), restarts)
    if torchft.is_installed():
        _say("torchft")
        yield torchft.measure_torchft(BY_NAME["kill"], _effort(args))


def _say(what: str) -> None:
    print(what, file=sys.stderr)
