"""Compare the NCCL plugin with NCCL's own socket transport, on the same links.

    make build/native/nccl_net/net_bench
    python -m tests.bench.nccl_net [--rounds 3] [--seconds 2] [--json F] [ROW ...]
    python -m tests.bench.nccl_net --plot net.png F ...
    python -m tests.bench.nccl_net --table F ...

The socket transport is a reimplementation of NCCL's
(native/tests/nccl_net/socket_strategy.h). On the loopback, a plain socket that carries
only the bytes of the messages is measured, too. Rows with a shaped link create network
namespaces, which needs root and iproute2. The transports are measured alternately, in
rounds, and each figure is a median. The second form plots the files that --json wrote,
and the third prints them as Markdown tables.
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

from bluecomm.bench.ending import exit_at_sigterm
from tests.support.cluster import run
from tests.support.paths import make_paths

BENCH = Path(__file__).parents[2] / "build/native/nccl_net/net_bench"


@dataclass(frozen=True)
class Row:
    """One link, and how each transport uses it.

    Attributes:
        shaped: Whether to use a link between two namespaces instead of the loopback.
        by_port: Rates in Mbit/s of two paths; a connection's port decides which one it
            takes.
        streams: Value of ``BLUECOMM_NET_STREAMS``.
        sockets: Data sockets of the socket transport, with as many helper threads, up
            to 4. 0 is NCCL's default.
        ports: Paths of the socket transport's connections, in turn: 0 for the first
            of ``by_port``, 1 for the second. Empty: at random.
        mbit: Rate of the link, shared by all connections.
        comms: Number of parallel connections of NCCL, all moved by one thread.
        flow_cap_mbit: Rate of each connection.
        message: Size of a message in bytes.
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
    """Return the name of the row for messages of ``size`` bytes."""
    return f"loopback-{size // KIB}k" if size >= KIB else f"loopback-{size}"


ROWS = {
    **{
        loopback(size): Row(f"loopback, {size:,} bytes", message=size) for size in SIZES
    },
    # Shows the cost of handing bytes to another thread.
    "helper": Row("loopback, one socket that a helper thread moves", sockets=1),
    "comms-8": Row("loopback, 8 communicators of one thread", comms=8),
    "veth": Row("unshaped link", shaped=True),
    # A single connection uses one of the paths, which its port determines.
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
    # With --seconds 2 --warm-up 0: what the search for the number of streams costs.
    "ports-auto": Row(
        "400 + 100 Mbit/s by port, automatic streams",
        shaped=True,
        by_port=(400, 100),
        sockets=4,
        ports="01",
    ),
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
# The rate of a row's links in MB/s of payload, where it is known. An Ethernet frame of
# 1514 bytes carries 1448 bytes of payload.
LIMITS = {
    **{
        f"ports-{how}": 500 / 8 * 1448 / 1514
        for how in ("fast", "slow", "2", "4", "auto")
    },
    **{f"shared-{count}": 1000 / 8 * 1448 / 1514 for count in (2, 8)},
    **{f"capped-{count}": count * 500 / 8 for count in (2, 4, 8)},
}
Side = dict[str, float]


def main() -> int:
    """Measure the rows that the command line names (default: all), or report files."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.nccl_net")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument(
        "--seconds", type=float, default=2, help="of each run (default: 2)"
    )
    parser.add_argument(
        "--warm-up", type=float, default=1, help="seconds before each run (default: 1)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="F", help="write the medians to this file"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="F", help="plot files that --json wrote"
    )
    parser.add_argument(
        "--table", action="store_true", help="print files that --json wrote as tables"
    )
    args = parser.parse_args()
    if args.plot is not None or args.table:
        _report(args)
        return 0
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"unknown row {unknown.pop()}; choose from {', '.join(ROWS)}")
    exit_at_sigterm()
    print(
        f"{'link':44} {'kind':8} {'MB/s':>8} {'ratio':>6} {'8 bytes':>9} "
        f"{'core s/GiB':>11} {'least share':>12}"
    )
    medians = {name: _measure(ROWS[name], args) for name in args.rows or ROWS}
    if args.json is not None:
        args.json.write_text(json.dumps(medians, indent=1))
    return 0


def _report(args: argparse.Namespace) -> None:
    """Print the results in files as tables, or plot them."""
    from tests.bench import nccl_net_report

    found: dict[str, dict[str, Side]] = {}
    for file in args.rows:
        found |= json.loads(Path(file).read_text())
    if args.table:
        print(nccl_net_report.tables(found))
    if args.plot is not None:
        nccl_net_report.draw(args.plot, found)


def _measure(row: Row, args: argparse.Namespace) -> dict[str, Side]:
    """Print and return the medians of all transports.

    The ratio is the plugin's throughput divided by the transport's in the same round.
    """
    with _rig(row) as command:
        runs = [_compare(row, command, args) for _ in range(args.rounds)]
    medians = {}
    for kind in runs[0]:
        side = {
            key: statistics.median(run[kind][key] for run in runs)
            for key in runs[0][kind]
        }
        side["ratio"] = statistics.median(
            run["plugin"]["mb_s"] / run[kind]["mb_s"] for run in runs
        )
        print(
            f"{row.text:44} {kind:8} {side['mb_s']:8.1f} {side['ratio']:6.2f} "
            f"{side['half_round_trip_us']:6.1f} us {side['core_s_per_gib']:11.2f} "
            f"{side['least_share']:12.2f}",
            flush=True,
        )
        medians[kind] = side
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
    """Wait until eth0 is running; NCCL ignores an interface that is not."""
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
