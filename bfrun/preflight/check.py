"""Shows the results of the pre-flight, as a table and as an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table

from bfrun.errors import LaunchError
from bfrun.preflight.preflight import HostReport
from bfrun.text_table import align
from bfrun.wording import count

# Each row is one line, whatever the width of the terminal: rich breaks words to fit a
# table into its width.
_WIDTH = 10_000
_COLUMNS = ("host", "result", "Python", "torch", "bluecomm", "cores", "GPUs")


def print_check(reports: Sequence[HostReport], file: TextIO) -> bool:
    """Print a table of all hosts, then each failure. Return whether all passed."""
    console = Console(file=file, highlight=False, width=_WIDTH)
    table = Table(box=None, pad_edge=False)
    for heading in (*_COLUMNS, "addresses"):
        table.add_column(heading, no_wrap=True)
    for report in reports:
        table.add_row(*_row(report))
    console.print(table)
    for report in reports:
        if line := _gpus(report):
            console.print(line, markup=False, soft_wrap=True)
        for line in _links(report):
            console.print(line, markup=False, soft_wrap=True)
    for line in _differences(reports):
        console.print(line, style="yellow", markup=False, soft_wrap=True)
    for line in _failures(reports):
        console.print(line, style="red", markup=False, soft_wrap=True)
    passed = not any(report.problems for report in reports)
    if passed:
        text = f"{count(len(reports), 'host is', 'hosts are')} ready"
        console.print(text, style="green")
    return passed


def raise_failures(reports: Sequence[HostReport]) -> None:
    """Raise unless every host passed.

    Raises:
        LaunchError: A host failed. The text has a line per failure with its remedy.
    """
    failures = _failures(reports)
    if failures:
        raise LaunchError(
            "\n  ".join(
                ["nothing was started, because the pre-flight failed:", *failures]
            )
        )


def _failures(reports: Sequence[HostReport]) -> list[str]:
    return [
        f"host '{report.host.name}': {problem}"
        for report in reports
        for problem in report.problems
    ]


def _gpus(report: HostReport) -> str:
    """Describe the GPUs of a host and the libraries for them; empty without GPUs."""
    found = report.gpus
    if not found:
        return ""
    where = f"host '{report.host.name}': "
    listed = len(report.answer["gpus"])
    if not found["names"]:
        if not listed:
            return ""
        why = found["problem"] or "CUDA finds none"
        return f"{where}{count(listed, 'GPU')}, which ranks cannot use: {why}"
    kinds = ", ".join(
        f"{number} x {name}" for name, number in Counter(found["names"]).items()
    )
    nccl = found["nccl"]
    network = f"NCCL {nccl} over {report.nccl_network}" if nccl else "no NCCL"
    return f"{where}{kinds}; CUDA driver {found['driver']}; {network}"


def _links(report: HostReport) -> list[str]:
    """Describe how the GPUs of a host are connected; a table if the pairs differ."""
    links = report.gpus.get("links", ())
    words = {word for _, _, word in links}
    where = f"host '{report.host.name}': links between GPUs:"
    if len(words) < 2:
        return [f"{where} {word}" for word in words]
    numbers = range(len(report.gpus["names"]))
    between = {frozenset((i, j)): word for i, j, word in links}
    rows = [
        (f"GPU {i}", *(between.get(frozenset((i, j)), "-") for j in numbers))
        for i in numbers
    ]
    return [where, *align([("", *(f"GPU {i}" for i in numbers)), *rows], left=1)]


def _differences(reports: Sequence[HostReport]) -> list[str]:
    """Return a warning for each version that is not the same on all hosts with GPUs."""
    hosts = [report for report in reports if report.gpus.get("names")]
    lines = []
    for key, what, effect in (
        ("nccl", "NCCL", "tensors on GPUs then travel through memory of the host"),
        ("driver", "CUDA's driver", "the older one limits the whole job"),
    ):
        found = {report.host.name: report.gpus[key] or "none" for report in hosts}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{text} on '{host}'" for host, text in found.items())
            lines.append(f"warning: {what} differs among hosts: {listed}; {effect}")
    return lines


def _row(report: HostReport) -> list[str]:
    answer = report.answer
    result = "FAILED" if report.problems else "ok"
    if not answer:
        return [report.host.name, result]
    addresses = report.addresses or [ip for _, ip in answer["addresses"]]
    return [
        report.host.name,
        result,
        *(answer[name] or "-" for name in ("python", "torch", "bluecomm")),
        str(len(answer["cpus"])),
        str(len(answer["gpus"])),
        ", ".join(addresses),
    ]
