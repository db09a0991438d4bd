"""Compare the NCCL plugin with NCCL's own sockets on the loopback, cell by cell.

    make build/native/nccl_net/net_bench
    python -m tests.bench.nccl_cells --json cells.json [--minutes 30] [--loads 0 2 8]
    python -m tests.bench.nccl_cells --json cells.json --table

A cell is a size of messages, a load of the machine, and where the two ends run: on any
CPU, or both on one. The load is a number of busy processes per CPU, which this command
starts. In each pair both transports run, in an order that alternates, and a cell's
figure is the median of the pairs' ratios, with quartiles. Each cell is written to the
file as soon as it is measured, and is not measured again if the file has it. The
sockets are a reimplementation of NCCL's (native/tests/nccl_net/socket_strategy.h).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.nccl_net import BENCH, KIB

SIZES = (8, *(size * KIB for size in (1, 16, 32, 64, 256, 1024, 8192)))
PLACES = {"free": "any CPU", "pinned": "one CPU"}
_SHORTEST_S = 0.1
_LOOK_S = 0.3
# A busy process ends with the process that started it.
_BUSY = """
import os
while os.getppid() == PARENT:
    for _ in range(1 << 20):
        pass
"""


@dataclass(frozen=True)
class Cell:
    """The median and quartiles of plugin / sockets in one cell.

    Attributes:
        size: Bytes of a message.
        place: A key of ``PLACES``.
        load: Busy processes per CPU beside the benchmark.
        ratio: Median over the pairs, and the quartiles.
        plugin_mb_s: Median throughput of the plugin, and that of the sockets.
        others: CPUs that other programs kept busy just before the cell.
    """

    size: int
    place: str
    load: int
    ratio: float
    first_quartile: float
    third_quartile: float
    plugin_mb_s: float
    sockets_mb_s: float
    pairs: int
    run_s: float
    others: float

    @property
    def name(self) -> tuple[int, str, int]:
        """Size, place and load, which no other cell shares."""
        return self.size, self.place, self.load


def main() -> int:
    """Measure the cells that the file does not have, and print all as a table."""
    args = _parse()
    cells = _read(args.json)
    if not args.table:
        known = {cell.name for cell in cells}
        wanted = itertools.product(args.loads, args.places, args.sizes)
        names = [(size, place, load) for load, place, size in wanted]
        missing = [name for name in names if name not in known]
        end = time.monotonic() + 60 * args.minutes
        for done, name in enumerate(missing):
            left_s = end - time.monotonic()
            cells.append(_measure(*name, args.pairs, left_s / (len(missing) - done)))
            text = json.dumps([asdict(cell) for cell in cells], indent=1)
            args.json.write_text(text)
            print(_line(cells[-1]), flush=True)
    print(table(cells))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.nccl_cells")
    parser.add_argument(
        "--json", type=Path, required=True, metavar="F", help="file of the results"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=30,
        help="for all cells together; longer runs vary less (default: 30)",
    )
    parser.add_argument("--pairs", type=int, default=15, help="default: 15")
    parser.add_argument(
        "--loads", type=int, nargs="+", default=[0, 2, 8], help="default: 0 2 8"
    )
    parser.add_argument(
        "--places", nargs="+", choices=PLACES, default=list(PLACES), help="default: all"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="bytes (default: 8 to 8 Mi)"
    )
    parser.add_argument("--table", action="store_true", help="only print the table")
    return parser.parse_args()


def _read(file: Path) -> list[Cell]:
    if not file.exists():
        return []
    return [Cell(**cell) for cell in json.loads(file.read_text())]


def _measure(size: int, place: str, load: int, pairs: int, seconds: float) -> Cell:
    """Measure a cell in about ``seconds``."""
    others = _busy_cpus()
    cpu = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", cpu] if place == "pinned" else []
    command += [str(BENCH), "--message", str(size), "--round-trips", "0"]
    end = time.monotonic() + seconds
    overhead_s = 0.0
    figures: dict[str, list[float]] = {"plugin": [], "socket": []}
    lengths = []
    with _busy_processes(load):
        for pair in range(pairs):
            share_s = (end - time.monotonic()) / (2 * (pairs - pair))
            run_s = max(share_s - overhead_s, _SHORTEST_S)
            lengths.append(run_s)
            for way in sorted(figures, reverse=pair % 2 == 1):
                start = time.monotonic()
                figures[way].append(_run([*command, "--way", way], run_s))
                overhead_s = max(time.monotonic() - start - run_s, 0)
    both = list(zip(figures["plugin"], figures["socket"], strict=True))
    ratios = [plugin / sockets for plugin, sockets in both]
    first, median, third = _quartiles(ratios)
    return Cell(
        size=size,
        place=place,
        load=load,
        ratio=median,
        first_quartile=first,
        third_quartile=third,
        plugin_mb_s=statistics.median(figures["plugin"]),
        sockets_mb_s=statistics.median(figures["socket"]),
        pairs=pairs,
        run_s=statistics.median(lengths),
        others=others,
    )


def _quartiles(values: list[float]) -> list[float]:
    if len(values) == 1:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def _busy_cpus() -> float:
    """Return how many CPUs are busy on average for a moment."""

    def ticks() -> list[int]:
        return [int(text) for text in Path("/proc/stat").read_text().split()[1:9]]

    before = ticks()
    time.sleep(_LOOK_S)
    spent = [now - then for now, then in zip(ticks(), before, strict=True)]
    idle = spent[3] + spent[4]
    return (os.cpu_count() or 1) * (1 - idle / max(sum(spent), 1))


def _run(command: list[str], run_s: float) -> float:
    """Return the throughput in MB/s. A third of the run is the warm-up."""
    times = ["--seconds", str(run_s * 2 / 3), "--warm-up", str(run_s / 3)]
    done = subprocess.run(
        [*command, *times], capture_output=True, text=True, timeout=120 + 60 * run_s
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return float(json.loads(done.stdout)["mb_s"])


@contextlib.contextmanager
def _busy_processes(per_cpu: int) -> Iterator[None]:
    """Keep every CPU busy with ``per_cpu`` processes."""
    program = _BUSY.replace("PARENT", str(os.getpid()))
    with contextlib.ExitStack() as stack:
        for cpu in sorted(os.sched_getaffinity(0)) * per_cpu:
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-S", "-c", program])
            )
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {cpu})
        yield


def _line(cell: Cell) -> str:
    return (
        f"{_size(cell.size):>8}  {PLACES[cell.place]}, load {cell.load}: "
        f"plugin {cell.plugin_mb_s:,.1f} MB/s, sockets {cell.sockets_mb_s:,.1f} MB/s, "
        f"{_ratio(cell)}"
    )


def table(cells: list[Cell]) -> str:
    """Return the ratios as a Markdown table: a row per size, a column per rest."""
    known = {cell.name: cell for cell in cells}
    columns = sorted({(cell.load, cell.place) for cell in cells})
    heads = [f"{PLACES[place]}, load {load}" for load, place in columns]
    lines = [f"| message | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for size in sorted({cell.size for cell in cells}):
        row = [known.get((size, place, load)) for load, place in columns]
        texts = ["" if cell is None else _ratio(cell) for cell in row]
        lines.append(f"| {_size(size)} | {' | '.join(texts)} |")
    others = [cell.others for cell in cells]
    if others:
        lines += ["", f"CPUs busy with others: {min(others):.1f} to {max(others):.1f}"]
    return "\n".join(lines)


def _ratio(cell: Cell) -> str:
    return f"{cell.ratio:.2f} ({cell.first_quartile:.2f} to {cell.third_quartile:.2f})"


def _size(size: int) -> str:
    if size < KIB:
        return f"{size} B"
    return f"{size // KIB} KiB" if size < KIB * KIB else f"{size >> 20} MiB"


if __name__ == "__main__":
    sys.exit(main())
