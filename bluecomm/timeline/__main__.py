"""``python -m bluecomm.timeline FILE``: what it says, as text or as a picture."""

from __future__ import annotations

import argparse
import functools
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from bfrun.trace.clock import ClockEstimate
from bfrun.trace.merge import Source, merge_file
from bfrun.trace.spool import pack
from bluecomm.timeline.plot import plot
from bluecomm.timeline.reading import read_timeline
from bluecomm.timeline.table import describe


def main(argv: Sequence[str] | None = None) -> int:
    """Read a timeline and tell what is in it.

    Args:
        argv: Arguments without the program's name. Default: those of this process.

    Returns:
        0, or 1 when a file cannot be read or written, or drawn without matplotlib.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.more and arguments.merge is None:
        parser.error("only traces to --merge may be several")
    try:
        if arguments.merge is not None:
            _merge([arguments.file, *arguments.more], arguments.merge)
            arguments.file = arguments.merge
        timeline = read_timeline(arguments.file)
        print(describe(timeline.totals))
        if arguments.plot is not None:
            plot(
                timeline, arguments.plot, begin_ms=arguments.begin, end_ms=arguments.end
            )
            print(f"picture in {arguments.plot}")
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _merge(files: Sequence[Path], target: Path) -> None:
    def read(path: Path, nbytes: int) -> bytes:
        return pack(path.read_bytes())[:nbytes]

    host = socket.gethostname()
    sources = [
        Source(path.name, functools.partial(read, path), host, ClockEstimate())
        for path in files
    ]
    merged = merge_file(sources, target)
    if merged.broken:
        raise ValueError("; ".join(merged.broken))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bluecomm.timeline",
        description="Tell what is in a timeline of bfrun --timeline-filename.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the timeline")
    parser.add_argument("more", type=Path, nargs="*", help="with --merge: more traces")
    parser.add_argument(
        "--merge",
        type=Path,
        metavar="OUT",
        help="first make the timeline OUT of traces (PREFIX<rank>.trace) that ranks of "
        "one machine left when they were killed",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="F", help="draw it into F, such as out.png"
    )
    parser.add_argument(
        "--begin",
        type=float,
        metavar="MS",
        help="first millisecond to draw (default: when the first rank did something)",
    )
    parser.add_argument(
        "--end",
        type=float,
        metavar="MS",
        help="last millisecond to draw (default: the end)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
