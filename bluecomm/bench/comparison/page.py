"""Writes the results of ``compare`` as a page of Markdown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bfrun.wording import count
from bluecomm.bench.comparison.results import Comparison
from bluecomm.bench.comparison.summary import (
    REFERENCE,
    Line,
    links_of,
    sections_of,
    target_of,
)

_INTRODUCTION = """\
# Results

This page compares the losses that algorithms reach with the same number of samples, and
the bytes{and_time} that they need for it.
`python -m bluecomm.bench compare` measured it ([benchmark.md](benchmark.md#compare));
[methods.md](methods.md) describes the algorithms.

* **Loss**: cross entropy on the validation set in nats, of the average of the ranks'
  models.
* **kB/step**: sent by the rank that sends most.
"""

_LINKS = """\
* **ms/step**: on hosts behind links of that speed, with an emulated accelerator.
* **s to target**: the time on that link until the loss is at most 2 % above the final
  loss of `{reference}`, if the training gets there. The loss is computed at ten points
  of a training, so these times are coarse.

A training is the same on all links, so each algorithm was trained once, and its time is
the number of steps times the time per step. Algorithms whose result depends on the
speed of the ranks were trained on each link.
"""

_NO_LINKS = """
Algorithms whose result depends on the speed of ranks, such as `async` and
`quorum_diloco`, are trained on each link, so they are missing here.
"""

_RATES = """
All use the rate of the task, except where `lr_factor` multiplies it, and the same
schedule. The rate of the task was not tuned, and each algorithm has another one that
suits it. Low-communication methods need longer trainings, which have sections of their
own. `bf.QAdam` has a
warm-up of a quarter of the steps{timed}. `powersgd` sends whole gradients in its first
1000 steps, and in a shorter training it does what `gradient_allreduce` does.
"""


def write_page(found: Comparison, path: Path, pictures: Mapping[str, Path]) -> None:
    """Write a page with a table for each section.

    Args:
        found: The results.
        path: Where the page goes.
        pictures: A picture for each section's name.
    """
    links = links_of(found)
    parts = [
        _INTRODUCTION.format(and_time=" and the time" if links else "")
        + (_LINKS.format(reference=REFERENCE) if links else _NO_LINKS)
        + _RATES.format(
            timed="; its times per step are those after it" if links else "",
        )
    ]
    for section in sections_of(found):
        parts.append(f"## {section.title}\n")
        parts.append(f"{section.task.about}\n")
        parts.append(_table(section.lines, links))
        if section.name in pictures:
            link = os.path.relpath(pictures[section.name], path.parent)
            axis = "bytes and time" if links else "bytes"
            parts.append(f"![{section.title}: loss against {axis}]({link})\n")
    parts.append("## Conditions\n")
    parts.append(_conditions(found))
    path.write_text("\n".join(parts))


def _table(lines: Sequence[Line], links: list[str]) -> str:
    target = target_of(lines)
    headings = ["algorithm", "loss", "accuracy", "kB/step"]
    headings += [f"ms/step, {link}" for link in links]
    headings += [f"s to target, {link}" for link in links]
    rows = [headings, ["---", *["---:"] * (len(headings) - 1)]]
    for line in lines:
        row = [
            f"`{line.contender}`",
            f"{line.final_loss:.3f}",
            f"{100 * line.accuracy:.1f} %",
            f"{line.sent_per_step / 1e3:.1f}",
        ]
        for link in links:
            step_ms = line.step_ms.get(link)
            row.append("" if step_ms is None else f"{step_ms:.1f}")
        for link in links:
            seconds = None if target is None else line.seconds_to(target, link)
            row.append("" if seconds is None else f"{seconds:.1f}")
        rows.append(row)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _conditions(found: Comparison) -> str:
    lines = []
    for fact in found.about:
        network = f"on links of {fact['link']}" if fact["link"] else "on one machine"
        share = (
            "" if fact["share"] == 1 else f", {100 * fact['share']:g} % of the steps"
        )
        lines.append(
            f"* {fact['date']}, {network}: {count(fact['ranks'], 'rank')} on "
            f"{count(fact['cores'], 'core')}, bluecomm {fact['bluecomm']}, "
            f"torch {fact['torch']}, {count(fact['seeds'], 'seed')}{share}, "
            f"emulated step of {fact['step_ms']:g} ms{_timed(fact)}\n"
        )
    # Runs that trained one task each, for example, have the same facts.
    return "".join(dict.fromkeys(lines))


def _timed(fact: Mapping[str, Any]) -> str:
    # Earlier files do not say it.
    if "seconds" not in fact:
        return ""
    return f", steps timed for at least {fact['seconds']:g} s"
