"""``python -m bluecomm.timeline FILE`` summarizes a timeline, as text or picture."""

from __future__ import annotations

import argparse
import functools
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from bfrun.options import OptionParser
from bfrun.trace.clock import ClockEstimate
from bfrun.trace.merge import Source, merge_file
from bfrun.trace.spool import pack
from bluecomm.timeline.plot import plot
from bluecomm.timeline.reading import read_timeline
from bluecomm.timeline.table import describe


def main(argv: Sequence[str] | None = None) -> int:
    """Read a timeline and print a summary.

    Args:
        argv: Command-line arguments. Default: ``sys.argv[1:]``.

    Returns:
        0, or 1 if a file cannot be read or written, or matplotlib is missing.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.more and arguments.merge is None:
        parser.error("several files are accepted only with --merge")
    try:
        if arguments.merge is not None:
            _merge([arguments.file, *arguments.more], arguments.merge)
            arguments.file = arguments.merge
        timeline = read_timeline(arguments.file)
        print(describe(timeline))
        if arguments.plot is not None:
            plot(
                timeline, arguments.plot, begin_ms=arguments.begin, end_ms=arguments.end
            )
            print(f"wrote the picture {arguments.plot}")
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
    parser = OptionParser(
        prog="python -m bluecomm.timeline",
        description="Summarizes a timeline that bfrun --timeline-filename wrote.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the timeline")
    parser.add_argument("more", type=Path, nargs="*", help="with --merge: more traces")
    parser.add_argument(
        "--merge",
        type=Path,
        metavar="OUT",
        help="first make the timeline OUT from the traces (PREFIX<rank>.trace) that "
        "killed ranks of one machine have left",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="F", help="write a picture to F, such as out.png"
    )
    parser.add_argument(
        "--begin",
        type=float,
        metavar="MS",
        help="first millisecond to draw (default: that of the first event)",
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
