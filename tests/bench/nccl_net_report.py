"""Markdown tables and a plot of the files of ``tests.bench.nccl_net --json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.bench.nccl_net import KIB, LIMITS, ROWS, SIZES, Side, loopback

Found = Mapping[str, Mapping[str, Side]]


def tables(found: Found) -> str:
    """Return one table of the sizes on the loopback, and one of all other rows."""
    return f"{_sizes(found)}\n{_links(found)}"


def _sizes(found: Found) -> str:
    kinds = ("sockets", "plain", "plugin")
    lines = [
        "| loopback, message | sockets MB/s | plain socket MB/s | plugin MB/s "
        "| plugin / sockets | plugin / plain "
        "| core s/GiB, sockets | plain | plugin |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size in SIZES:
        row = found.get(loopback(size))
        if row is None:
            continue
        cells = [
            _size(size),
            *(_rate(row[kind]["mb_s"]) for kind in kinds),
            *(f"{row[kind]['ratio']:.2f}" for kind in kinds[:2]),
            *(f"{row[kind]['core_s_per_gib']:.2f}" for kind in kinds),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _links(found: Found) -> str:
    lines = [
        "| link | sockets MB/s | plugin MB/s | plugin / sockets | of the limit "
        "| least share, sockets | plugin |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in set(ROWS) & set(found) - set(map(loopback, SIZES)):
        sockets, plugin = found[name]["sockets"], found[name]["plugin"]
        limit = f"{plugin['mb_s'] / LIMITS[name]:.0%}" if name in LIMITS else ""
        cells = [
            ROWS[name].text,
            _rate(sockets["mb_s"]),
            _rate(plugin["mb_s"]),
            f"{sockets['ratio']:.2f}",
            limit,
            *(f"{side['least_share']:.2f}" for side in (sockets, plugin)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines[:2], *sorted(lines[2:])]) + "\n"


def _size(size: int) -> str:
    if size < KIB:
        return f"{size} B"
    return f"{size // KIB} KiB" if size < 64 * KIB * KIB else f"{size >> 20} MiB"


def _rate(mb_s: float) -> str:
    return f"{mb_s:,.0f}" if mb_s >= 1000 else f"{mb_s:.1f}"


def draw(path: Path, found: Found) -> None:
    """Plot messages of all sizes on the loopback, and links with limits."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    sizes = [size for size in SIZES if loopback(size) in found]
    limited = [name for name in LIMITS if name in found]
    for number, side in enumerate(("sockets", "plugin")):
        shares = [100 * found[row][side]["mb_s"] / LIMITS[row] for row in limited]
        bars = [index + 0.4 * number for index in range(len(limited))]
        right.barh(bars, shares, height=0.4, label=side)
    for side in ("sockets", "plugin", "plain"):
        rates = [found[loopback(size)][side]["mb_s"] for size in sizes]
        left.semilogx([size / KIB for size in sizes], rates, "o-", label=side, base=2)
    left.set(xlabel="message, KiB", ylabel="MB/s", title="loopback")
    right.set(xlabel="% of the links' capacity", title="limited links")
    right.set_yticks([index + 0.2 for index in range(len(limited))])
    right.set_yticklabels([ROWS[name].text for name in limited])
    right.axvline(100, color="gray", linestyle=":")
    for axes in (left, right):
        axes.legend(fontsize=8, loc="lower right")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=90)
    plt.close(figure)
