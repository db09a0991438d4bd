"""The NCCL plugin beside NCCL's own way over sockets, on the same links.

    make build/native/net/net_bench
    python -m tests.bench.net [--rounds 3] [--seconds 2] [ROW ...]

The other side is the driver's own reimplementation of what NCCL does over sockets
(native/tests/net/socket_strategy.h). Rows with a shaped link make network namespaces:
they need root and iproute2. Both ways are measured in turn, round after round; a figure
is the median.
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


ROWS = {
    "loopback": Row("loopback, 1 MiB"),
    "loopback-128k": Row("loopback, 128 KiB", message=128 << 10),
    "veth": Row("unshaped link, 1 MiB", shaped=True),
    "ports": Row(
        "400 + 100 Mbit/s by port; 8 streams, default",
        shaped=True,
        by_port=(400, 100),
        streams="8",
    ),
    "ports-4": Row(
        "400 + 100 Mbit/s by port; 8 streams, 4 sockets",
        shaped=True,
        by_port=(400, 100),
        streams="8",
        sockets=4,
    ),
    "capped": Row(
        "0.5 Gbit/s per flow; 8 streams, 8 sockets",
        streams="8",
        sockets=8,
        flow_cap_mbit=500,
    ),
}


def main() -> int:
    """Measure the rows that the command line names, all by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.net")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--seconds", type=float, default=2, help="of each run")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"unknown row {unknown.pop()}; there are {', '.join(ROWS)}")
    names = args.rows or list(ROWS)
    head = f"{'link':48} {'sockets':>9} {'plugin':>9} {'ratio':>6}"
    print(f"{head} {'8 bytes, us':>13} {'core s/GiB':>13}")
    for name in names:
        with _rig(ROWS[name]) as command:
            runs = [_compare(ROWS[name], command, args) for _ in range(args.rounds)]
        theirs, ours = (
            {
                key: statistics.median(run[side][key] for run in runs)
                for key in runs[0][0]
            }
            for side in (0, 1)
        )
        ratio = statistics.median(run[1]["mb_s"] / run[0]["mb_s"] for run in runs)
        print(
            f"{ROWS[name].text:48} {theirs['mb_s']:9.1f} {ours['mb_s']:9.1f} "
            f"{ratio:6.2f} {theirs['half_round_trip_us']:6.1f} "
            f"{ours['half_round_trip_us']:6.1f} {theirs['core_s_per_gib']:6.2f} "
            f"{ours['core_s_per_gib']:6.2f}",
            flush=True,
        )
    return 0


def _compare(
    row: Row, command: list[str], args: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float]]:
    command = [*command, "--seconds", str(args.seconds), "--message", str(row.message)]
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
