"""The NCCL plugin beside NCCL's own way over sockets, on the same links.

    make build/native/nccl_net/net_bench
    python -m tests.bench.nccl_net [--rounds 3] [--seconds 2] [--json F] [ROW ...]
    python -m tests.bench.nccl_net --plot net.png F ...
    python -m tests.bench.nccl_net --table F ...

The other side is the driver's own reimplementation of what NCCL does over sockets
(native/tests/nccl_net/socket_strategy.h); on the loopback also one plain socket
that carries nothing but the messages' bytes. Rows with a shaped link make network
namespaces: they need root and iproute2. The ways are measured in turn, round after
round; a figure is the median. The second form draws what such runs have written, the
third prints it as tables of Markdown.
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

BENCH = Path(__file__).parents[2] / "build/native/nccl_net/net_bench"


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
        ports: The paths of the other side's connections, in turn: 0 for the first
            class of ``by_port``, 1 for the second; empty: as it comes.
        mbit: Limit of the link, for all together.
        comms: Connections of NCCL side by side, all moved by one thread.
        flow_cap_mbit: Limit of each connection.
        message: Bytes of a message.
    """

    text: str
    shaped: bool = False
    by_port: tuple[int, int] | None = None
    streams: str = "auto"
    sockets: int = 0
    ports: str = ""
    mbit: int | None = None
    comms: int = 1
    flow_cap_mbit: float = 0
    message: int = 1 << 20


KIB = 1 << 10
SIZES = [
    8,
    *(size * KIB for size in (1, 4, 16, 32, 64, 128, 256, 1024, 4096)),
    64 << 20,
]


def loopback(size: int) -> str:
    """Return the name of the row of messages of so many bytes."""
    return f"loopback-{size // KIB}k" if size >= KIB else f"loopback-{size}"


ROWS = {
    **{
        loopback(size): Row(f"loopback, {size:,} bytes", message=size) for size in SIZES
    },
    # What it costs to hand bytes to another thread.
    "helper": Row("loopback, one socket that a helper thread moves", sockets=1),
    "comms-8": Row("loopback, 8 communicators of one thread", comms=8),
    "veth": Row("unshaped link", shaped=True),
    # One connection has one of the paths, whichever its port gives it.
    "ports-fast": Row(
        "400 + 100 Mbit/s by port, one socket, on 400",
        shaped=True,
        by_port=(400, 100),
        streams="8",
        ports="0",
    ),
    "ports-slow": Row(
        "400 + 100 Mbit/s by port, one socket, on 100",
        shaped=True,
        by_port=(400, 100),
        streams="8",
        ports="1",
    ),
    **{
        f"ports-{count}": Row(
            f"400 + 100 Mbit/s by port, {count} sockets",
            shaped=True,
            by_port=(400, 100),
            streams="8",
            sockets=count,
            ports="01",
        )
        for count in (2, 4)
    },
    **{
        f"shared-{count}": Row(
            f"{count} communicators on 1 Gbit/s", shaped=True, mbit=1000, comms=count
        )
        for count in (2, 8)
    },
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
    **{f"ports-{how}": 500 / 8 * 1448 / 1514 for how in ("fast", "slow", "2", "4")},
    **{f"shared-{count}": 1000 / 8 * 1448 / 1514 for count in (2, 8)},
    **{f"capped-{count}": count * 500 / 8 for count in (2, 4, 8)},
}
Side = dict[str, float]


def main() -> int:
    """Measure the rows that the command line names, all by default; or draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.nccl_net")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--seconds", type=float, default=2, help="of each run")
    parser.add_argument("--warm-up", type=float, default=1, help="before each, seconds")
    parser.add_argument("--json", type=Path, metavar="F", help="write the medians")
    parser.add_argument("--plot", type=Path, metavar="F", help="draw files of --json")
    parser.add_argument("--table", action="store_true", help="of files of --json")
    args = parser.parse_args()
    if args.plot is not None or args.table:
        _report(args)
        return 0
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"unknown row {unknown.pop()}; there are {', '.join(ROWS)}")
    print(
        f"{'link':44} {'way':8} {'MB/s':>8} {'ratio':>6} {'8 bytes':>9} "
        f"{'core s/GiB':>11} {'least share':>12}"
    )
    medians = {name: _measure(ROWS[name], args) for name in args.rows or ROWS}
    if args.json is not None:
        args.json.write_text(json.dumps(medians, indent=1))
    return 0


def _report(args: argparse.Namespace) -> None:
    """Print a table of what files hold, or draw it."""
    from tests.bench import nccl_net_report

    found: dict[str, dict[str, Side]] = {}
    for file in args.rows:
        found |= json.loads(Path(file).read_text())
    if args.table:
        print(nccl_net_report.tables(found))
    if args.plot is not None:
        nccl_net_report.draw(args.plot, found)


def _measure(row: Row, args: argparse.Namespace) -> dict[str, Side]:
    """Return the medians of all ways, and print them.

    The ratio is that of the plugin's throughput to the way's own, in the same round.
    """
    with _rig(row) as command:
        runs = [_compare(row, command, args) for _ in range(args.rounds)]
    medians = {}
    for way in runs[0]:
        side = {
            key: statistics.median(run[way][key] for run in runs)
            for key in runs[0][way]
        }
        side["ratio"] = statistics.median(
            run["plugin"]["mb_s"] / run[way]["mb_s"] for run in runs
        )
        print(
            f"{row.text:44} {way:8} {side['mb_s']:8.1f} {side['ratio']:6.2f} "
            f"{side['half_round_trip_us']:6.1f} us {side['core_s_per_gib']:11.2f} "
            f"{side['least_share']:12.2f}",
            flush=True,
        )
        medians[way] = side
    return medians


def _compare(row: Row, command: list[str], args: argparse.Namespace) -> dict[str, Side]:
    times = ["--seconds", str(args.seconds), "--warm-up", str(args.warm_up)]
    command = [*command, *times, "--message", str(row.message)]
    command += ["--comms", str(row.comms)]
    if row.flow_cap_mbit:
        command += ["--flow-cap", str(row.flow_cap_mbit / 8)]
    sockets = ["--sockets", str(row.sockets), "--threads", str(min(row.sockets, 4))]
    if row.ports:
        sockets += ["--ports", row.ports]
    sides = {"sockets": _run([*command, "--way", "socket", *sockets])}
    if not row.shaped and not row.flow_cap_mbit:
        sides["plain"] = _run([*command, "--way", "plain"])
    streams = {"BLUECOMM_NET_STREAMS": row.streams}
    sides["plugin"] = _run([*command, "--way", "plugin"], **streams)
    return sides


@contextlib.contextmanager
def _rig(row: Row) -> Iterator[list[str]]:
    """Yield the command that runs the native benchmark over the row's link."""
    if not row.shaped:
        yield [str(BENCH)]
        return
    with make_paths() as paths:
        if row.mbit:
            paths.shape(0, row.mbit)
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
