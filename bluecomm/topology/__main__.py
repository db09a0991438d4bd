"""``python -m bluecomm.topology NAME -n N`` shows costs and mixing of topologies."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from bfrun.options import OptionParser
from bfrun.text_table import align
from bfrun.wording import count
from bluecomm.topology.consensus import (
    mean_gap,
    rounds_looked_at,
    rounds_to_consensus,
)
from bluecomm.topology.names import NAMES, make_topology
from bluecomm.topology.plot import plot_topology
from bluecomm.topology.schedule import StaticTopology, TopologySchedule
from bluecomm.topology.traffic import Traffic, traffic_of

_FRACTION = 1e-6
_HEADINGS: tuple[str, ...] = (
    *("topology", "period", "degree", "gap", "rounds"),
    *("MB/rank", "MB/card", "card most"),
)
# The matrices of more ranks take minutes.
_MOST_RANKS_OF_MATRICES = 256


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of topologies, and draw one.

    Args:
        argv: Command-line arguments. Default: ``sys.argv[1:]``.

    Returns:
        0, or 2 if the arguments do not fit together or the picture cannot be drawn.
    """
    args = _parser().parse_args(argv)
    try:
        rows = [_row(label, args) for label in args.names]
        _print(rows, args)
        if args.plot:
            _plot(rows[0], args.plot)
    except (ImportError, OSError, ValueError) as error:
        print(f"bluecomm.topology: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="python -m bluecomm.topology",
        description="Shows degree, spectral gap, rounds to consensus and bytes of "
        "topologies.",
        epilog=f"NAME is one of {', '.join(NAMES)}. Options follow the name, as in "
        "BaseGraph:k=2 or MeshGrid2DGraph:shape=2x8.",
    )
    parser.add_argument("names", nargs="+", metavar="NAME[:OPTION=VALUE]")
    parser.add_argument("-n", "--ranks", type=int, default=16, help="default: 16")
    parser.add_argument(
        "--ranks-per-machine",
        type=int,
        default=1,
        help="ranks that share a network card (default: 1)",
    )
    parser.add_argument(
        "--parameters-mb",
        type=float,
        default=20.0,
        help="MB (10^6 bytes) that a rank sends to each neighbor (default: 20)",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw the first topology, as PNG, PDF or SVG",
    )
    return parser


@dataclasses.dataclass(frozen=True)
class _Row:
    """The properties of one topology."""

    label: str
    schedule: TopologySchedule
    traffic: Traffic
    gap: float | None
    rounds: int | None


def _row(label: str, args: argparse.Namespace) -> _Row:
    if args.ranks < 1 or args.ranks_per_machine < 1 or args.parameters_mb <= 0:
        raise ValueError(
            "--ranks, --ranks-per-machine and --parameters-mb must be above 0"
        )
    schedule = make_topology(label, args.ranks, args.ranks_per_machine)
    machine_of = [rank // args.ranks_per_machine for rank in range(args.ranks)]
    gap = rounds = None
    if args.ranks <= _MOST_RANKS_OF_MATRICES:
        gap = mean_gap(schedule)
        rounds = rounds_to_consensus(schedule, _FRACTION)
    traffic = traffic_of(schedule, machine_of, rounds_looked_at(schedule))
    return _Row(label, schedule, traffic, gap, rounds)


def _print(rows: Sequence[_Row], args: argparse.Namespace) -> None:
    cells = [_HEADINGS]
    for row in rows:
        period = row.schedule.period
        cells.append(
            (
                row.label,
                "-" if period is None else str(period),
                str(row.traffic.rank_most),
                "-" if row.gap is None else f"{row.gap:.3g}",
                _rounds(row, args.ranks),
                f"{row.traffic.rank_mean * args.parameters_mb:.4g}",
                f"{row.traffic.card_mean * args.parameters_mb:.4g}",
                f"{row.traffic.card_most * args.parameters_mb:.4g}",
            )
        )
    print(
        f"{count(args.ranks, 'rank')}, {args.ranks_per_machine} per machine, "
        f"{args.parameters_mb:g} MB of parameters"
    )
    print("\n".join(align(cells, left=1)))
    print(
        f"gap: spectral gap; rounds: to {_FRACTION:g} of the first consensus distance; "
        "MB: sent per step by a\nrank, by a machine's network card on average, and by "
        "the busiest card at most"
    )


def _rounds(row: _Row, ranks: int) -> str:
    if ranks > _MOST_RANKS_OF_MATRICES:
        return "-"
    return "never" if row.rounds is None else str(row.rounds)


def _plot(row: _Row, file: str) -> None:
    schedule = row.schedule
    about = (
        f"{row.label}, {count(schedule.size, 'rank')}, degree {row.traffic.rank_most}"
    )
    if row.gap is not None:
        about += f", gap {row.gap:.3g}"
    if isinstance(schedule, StaticTopology):
        plot_topology(schedule.graph(0), file, title=about)
    else:
        plot_topology(schedule, file, title=about)
    print(f"wrote the picture {file}")


if __name__ == "__main__":
    sys.exit(main())
