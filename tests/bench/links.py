"""Measure the goodput between two hosts over shaped links, and of a plain TCP stream.

    make build/native/transport/tcp_bench
    python -m tests.bench.links [--rounds 3] [--seconds 2] [ROW ...]

Creates network namespaces, which needs root and iproute2. The rows are measured
alternately, in rounds, each together with a plain stream. Each figure is a median.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bluecomm.bench.ending import exit_at_sigterm
from tests.support.paths import Paths, make_paths

BENCH = Path(__file__).parents[2] / "build/native/transport/tcp_bench"
# The share of payload in a link's rate: 1448 of 1514 bytes of each Ethernet frame.
_PAYLOAD = 1448 / 1514


@dataclass(frozen=True)
class Row:
    """One link, and what a run over it is compared with.

    Attributes:
        links: Cables between the hosts; 0 is one host's loopback.
        mbit: Rate of each cable, unlimited if empty.
        by_port: Rates of two paths; a connection's port decides which one it takes.
        streams: Value of ``BLUECOMM_TCP_STREAMS``, 0 for auto.
        flow_cap_mbit: Rate of each connection.
        ideal_mbit: Payload rate to compare with; 0 compares with the plain stream.
        versus_one: Compare with a run over one stream.
        encryption: Value of ``BLUECOMM_ENCRYPTION``; if it is not ``off``, compare with
            a run without.
    """

    text: str
    links: int = 1
    mbit: tuple[int, ...] = ()
    by_port: tuple[int, int] | None = None
    streams: int = 0
    flow_cap_mbit: float = 0
    ideal_mbit: float = 0
    versus_one: bool = False
    encryption: str = "off"


ROWS = {
    "shaped": Row("one link of 1 Gbit/s", mbit=(1000,)),
    "ports": Row(
        "400 + 100 Mbit/s, sorted by port, 8 streams",
        by_port=(400, 100),
        streams=8,
        ideal_mbit=500 * _PAYLOAD,
    ),
    "addresses": Row(
        "400 + 100 Mbit/s, an address each",
        links=2,
        mbit=(400, 100),
        ideal_mbit=500 * _PAYLOAD,
    ),
    "capped": Row(
        "0.5 Gbit/s per flow, 8 streams",
        streams=8,
        flow_cap_mbit=500,
        ideal_mbit=8 * 500,
    ),
    "capped-auto": Row(
        "0.5 Gbit/s per flow, auto", flow_cap_mbit=500, ideal_mbit=8 * 500
    ),
    "veth": Row("unshaped link, auto against 1 stream", versus_one=True),
    "loopback": Row("loopback, auto against 1 stream", links=0, versus_one=True),
    "shaped-auth": Row(
        "one link of 1 Gbit/s, authenticated", mbit=(1000,), encryption="auth"
    ),
    "shaped-full": Row(
        "one link of 1 Gbit/s, encrypted", mbit=(1000,), encryption="full"
    ),
    "loopback-auth": Row("loopback, authenticated", links=0, encryption="auth"),
    "loopback-full": Row("loopback, encrypted", links=0, encryption="full"),
}


def main() -> int:
    """Measure the rows that the command line names (default: all)."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.links")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument(
        "--seconds", type=float, default=2, help="of each run (default: 2)"
    )
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"unknown row {unknown.pop()}; choose from {', '.join(ROWS)}")
    if not BENCH.exists():
        parser.error(
            f"{BENCH} does not exist; run 'make {BENCH.relative_to(Path.cwd())}'"
        )
    exit_at_sigterm()
    names = args.rows or list(ROWS)
    runs: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            runs[name].append(_measure(ROWS[name], args.seconds))
    print(
        f"{'link':46} {'reference':>10} {'ours':>10} {'share':>7} {'4 bytes':>9}"
        "  per second of the sender's processor"
    )
    for name, done in runs.items():
        reference, ours, latency_us, per_cpu_s = (
            statistics.median(column) for column in zip(*done, strict=True)
        )
        share = statistics.median(run[1] / run[0] for run in done)
        print(
            f"{ROWS[name].text:46} {reference:5.0f} MB/s {ours:5.0f} MB/s "
            f"{share:7.1%} {latency_us:6.1f} us  {per_cpu_s:6.0f} MB"
        )
    return 0


def _measure(row: Row, seconds: float) -> tuple[float, ...]:
    """Return the reference's goodput and ours in MB/s, the round trip in us, and MB.

    The last is what the sender moves in a second of its processor.
    """
    with _rig(row) as command:
        command += ["--seconds", str(seconds)]
        if row.flow_cap_mbit:
            command += ["--flow-cap", str(row.flow_cap_mbit / 8)]
        command += ["--streams", str(row.streams)]
        got = _run([*command, "--encryption", row.encryption])
        reference = got["plain_mb_s"]
        if row.encryption != "off":
            reference = _run(command)["ours_mb_s"]
        if row.versus_one:
            reference = _run([*command, "--streams", "1"])["ours_mb_s"]
        if row.ideal_mbit:
            reference = row.ideal_mbit / 8
    return (
        reference,
        got["ours_mb_s"],
        got["round_trip_us"],
        got["ours_mb_per_cpu_s"],
    )


@contextlib.contextmanager
def _rig(row: Row) -> Iterator[list[str]]:
    """Yield the command that runs the native benchmark over the row's links."""
    if row.links == 0:
        yield [str(BENCH)]
        return
    with make_paths(row.links) as paths:
        for link, mbit in enumerate(row.mbit):
            paths.shape(link, mbit)
        if row.by_port:
            paths.sort_by_port(row.by_port)
        yield _command(paths)


def _command(paths: Paths) -> list[str]:
    return [
        *("ip", "netns", "exec", paths.here, str(BENCH)),
        *("--peer-netns", f"/run/netns/{paths.there}"),
        *("--address", ",".join(paths.here_addresses)),
        *("--peer-address", ",".join(paths.there_addresses)),
    ]


def _run(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    got: dict[str, float] = json.loads(done.stdout)
    return got


if __name__ == "__main__":
    sys.exit(main())
