"""The NCCL plugin beside NCCL's own way over sockets, on the same links.

    make build/native/net/net_bench
    python -m tests.bench.net [--rounds 3] [--seconds 2] [--json F] [ROW ...]
    python -m tests.bench.net --plot net.png F ...

The other side is the driver's own reimplementation of what NCCL does over sockets
(native/tests/net/socket_strategy.h). Rows with a shaped link make network namespaces:
they need root and iproute2. Both ways are measured in turn, round after round; a figure
is the median. The second form draws what such runs have written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.cluster import run
from tests.support.paths import make_paths

BENCH = Path(__file__).parents[2] / "build/native/net/net_bench"


@dataclass(frozen=True)
class Row:
    """One link, and how each side uses it.

    Attributes:
        shaped: There is a link between two namespaces; else it is the loopback.
        by_port: Limits in Mbit/s of two classes that the ports of a connection choose
            from.
        streams: As ``BLUECOMM_NET_STREAMS``.
        sockets: Data sockets of the other side, and as many helper threads up to 4;
            0 is NCCL's default.
        flow_cap_mbit: Limit of each connection.
        message: Bytes of a message.
    """

    text: str
    shaped: bool = False
    by_port: tuple[int, int] | None = None
    streams: str = "auto"
    sockets: int = 0
    flow_cap_mbit: float = 0
    message: int = 1 << 20


KIB = 1 << 10
SIZES = [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 1 << 20, 4 << 20]

ROWS = {
    **{
        f"loopback-{size // KIB}k": Row(f"loopback, {size // KIB} KiB", message=size)
        for size in SIZES
    },
    "veth": Row("unshaped link", shaped=True),
    "ports": Row(
        "400 + 100 Mbit/s by port, one socket",
        shaped=True,
        by_port=(400, 100),
        streams="8",
    ),
    "ports-4": Row(
        "400 + 100 Mbit/s by port, 4 sockets",
        shaped=True,
        by_port=(400, 100),
        streams="8",
        sockets=4,
    ),
    **{
        f"capped-{count}": Row(
            f"0.5 Gbit/s per flow, {count} flows",
            streams=str(count),
            sockets=count,
            flow_cap_mbit=500,
        )
        for count in (2, 4, 8)
    },
}
# What the links of a row carry, in MB/s of payload, where that is known: a frame of
# 1514 bytes holds 1448.
LIMITS = {
    "ports": 500 / 8 * 1448 / 1514,
    "ports-4": 500 / 8 * 1448 / 1514,
    **{f"capped-{count}": count * 500 / 8 for count in (2, 4, 8)},
}
Side = dict[str, float]


def main() -> int:
    """Measure the rows that the command line names, all by default; or draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.net")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--seconds", type=float, default=2, help="of each run")
    parser.add_argument("--warm-up", type=float, default=1, help="before each, seconds")
    parser.add_argument("--json", type=Path, metavar="F", help="write the medians")
    parser.add_argument("--plot", type=Path, metavar="F", help="draw files of --json")
    args = parser.parse_args()
    if args.plot is not None:
        found: dict[str, dict[str, Side]] = {}
        for file in args.rows:
            found |= json.loads(Path(file).read_text())
        _draw(args.plot, found)
        return 0
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"unknown row {unknown.pop()}; there are {', '.join(ROWS)}")
    print(
        f"{'link':40} {'sockets':>9} {'plugin':>9} {'ratio':>6} {'8 bytes, us':>13} "
        f"{'core s/GiB':>13}"
    )
    medians = {name: _measure(ROWS[name], args) for name in args.rows or ROWS}
    if args.json is not None:
        args.json.write_text(json.dumps(medians, indent=1))
    return 0


def _measure(row: Row, args: argparse.Namespace) -> dict[str, Side]:
    """Return the medians of both sides, and print them."""
    with _rig(row) as command:
        runs = [_compare(row, command, args) for _ in range(args.rounds)]
    theirs, ours = (
        {key: statistics.median(run[side][key] for run in runs) for key in runs[0][0]}
        for side in (0, 1)
    )
    ratio = statistics.median(run[1]["mb_s"] / run[0]["mb_s"] for run in runs)
    print(
        f"{row.text:40} {theirs['mb_s']:9.1f} {ours['mb_s']:9.1f} {ratio:6.2f} "
        f"{theirs['half_round_trip_us']:6.1f} {ours['half_round_trip_us']:6.1f} "
        f"{theirs['core_s_per_gib']:6.2f} {ours['core_s_per_gib']:6.2f}",
        flush=True,
    )
    return {"sockets": theirs, "plugin": ours}


def _draw(path: Path, found: dict[str, dict[str, Side]]) -> None:
    """Draw messages of all sizes on the loopback, and links that are limited."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    sizes = [size for size in SIZES if f"loopback-{size // KIB}k" in found]
    limited = [name for name in LIMITS if name in found]
    for number, side in enumerate(("sockets", "plugin")):
        rates = [found[f"loopback-{size // KIB}k"][side]["mb_s"] for size in sizes]
        left.semilogx([size / KIB for size in sizes], rates, "o-", label=side, base=2)
        shares = [100 * found[row][side]["mb_s"] / LIMITS[row] for row in limited]
        places = [place + 0.4 * number for place in range(len(limited))]
        right.barh(places, shares, height=0.4, label=side)
    left.set(xlabel="message, KiB", ylabel="MB/s", title="loopback")
    right.set(xlabel="% of what the links carry", title="limited links")
    right.set_yticks([place + 0.2 for place in range(len(limited))])
    right.set_yticklabels([ROWS[name].text for name in limited])
    right.axvline(100, color="gray", linestyle=":")
    for axes in (left, right):
        axes.legend(fontsize=8, loc="lower right")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _compare(
    row: Row, command: list[str], args: argparse.Namespace
) -> tuple[Side, Side]:
    times = ["--seconds", str(args.seconds), "--warm-up", str(args.warm_up)]
    command = [*command, *times, "--message", str(row.message)]
    if row.flow_cap_mbit:
        command += ["--flow-cap", str(row.flow_cap_mbit / 8)]
    threads = min(row.sockets, 4)
    sockets = ["--sockets", str(row.sockets), "--threads", str(threads)]
    theirs = _run([*command, "--way", "socket", *sockets])
    ours = _run([*command, "--way", "plugin"], BLUECOMM_NET_STREAMS=row.streams)
    return theirs, ours


@contextlib.contextmanager
def _rig(row: Row) -> Iterator[list[str]]:
    """Yield the command that runs the native benchmark over the row's link."""
    if not row.shaped:
        yield [str(BENCH)]
        return
    with make_paths() as paths:
        if row.by_port:
            paths.sort_by_port(row.by_port)
        for namespace in (paths.here, paths.there):
            _wait_until_up(namespace)
        inside = ["ip", "netns", "exec", paths.here, str(BENCH)]
        there = ["--peer-netns", f"/run/netns/{paths.there}"]
        yield [*inside, *there, "--interface", "eth0"]


def _wait_until_up(namespace: str) -> None:
    """Wait until the kernel calls eth0 running: NCCL takes no other card."""
    deadline = time.monotonic() + 30
    while "LOWER_UP" not in run("ip", "-n", namespace, "link", "show", "dev", "eth0"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"eth0 of {namespace} does not come up")
        time.sleep(0.02)


def _run(command: list[str], **variables: str) -> dict[str, float]:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    got: dict[str, float] = json.loads(done.stdout)
    return got


if __name__ == "__main__":
    sys.exit(main())
