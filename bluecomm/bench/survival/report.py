"""Results of ``survive`` as JSON and as tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bluecomm.bench.stored import stored
from bluecomm.bench.survival.faults import BY_NAME
from bluecomm.bench.survival.goodput import Goodput
from bluecomm.bench.survival.joins import JoinPause
from bluecomm.bench.survival.outcome import Outcome
from bluecomm.bench.survival.speed import COST_LIMIT, Cost
from bluecomm.bench.survival.torchrun import PeerOutcome
from bluecomm.bench.terminal import new_table, show_table

FORMAT = "bluecomm.bench.survive/2"


@dataclasses.dataclass(frozen=True)
class SurvivalReport:
    """Results of a run of ``survive``.

    Attributes:
        about: Date, cores, load of the machine, versions and settings.
        outcomes: The outcome of each job with a fault.
        costs: The cost of survival while nothing fails.
        goodputs: The pace with repeated failures.
        joins: The pauses while a newcomer joins.
        peers: The same fault with other libraries.
        not_covered: Algorithms that ``bfrun --on-failure continue`` refuses.
    """

    about: Mapping[str, Any]
    outcomes: Sequence[Outcome] = ()
    costs: Sequence[Cost] = ()
    goodputs: Sequence[Goodput] = ()
    joins: Sequence[JoinPause] = ()
    peers: Sequence[PeerOutcome] = ()
    not_covered: Sequence[str] = ()

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        path.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> SurvivalReport:
        """Read a report that ``write`` has written.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file has other content, or another version of the format.
        """
        with stored(path, FORMAT) as content:
            return cls(
                about=content["about"],
                outcomes=[Outcome(**row) for row in content["outcomes"]],
                costs=[Cost(**row) for row in content["costs"]],
                goodputs=[Goodput(**row) for row in content["goodputs"]],
                joins=[JoinPause(**row) for row in content["joins"]],
                peers=[PeerOutcome(**row) for row in content["peers"]],
                not_covered=content["not_covered"],
            )

    def where(self) -> str:
        """Describe the run in words."""
        about = self.about
        return (
            f"steps of {about['step_ms']:g} ms, {about['cores']} cores, "
            f"load {about['load_before']:.1f} to {about['load_after']:.1f}"
        )

    @property
    def failures(self) -> int:
        """Number of jobs that did not go on as they should."""
        return sum(not outcome.goes_on for outcome in self.outcomes)

    def print(self) -> None:
        """Print all results."""
        if self.outcomes:
            self._print_outcomes()
        if self.costs:
            self._print_costs()
        if self.goodputs:
            self._print_goodputs()
        if self.joins:
            self._print_joins()
        for peer in self.peers:
            fault = BY_NAME[peer.fault].title
            verb = "steps again after" if peer.goes_on else "has ended after"
            again = f", and repeats {peer.repeated} steps" if peer.goes_on else ""
            print(f"{peer.peer}, {fault}: {verb} {peer.seconds:.1f} s{again}")
            print(f"  {peer.text}")
        if self.not_covered:
            print(f"not covered: {', '.join(self.not_covered)}")

    def _print_outcomes(self) -> None:
        table = new_table(
            f"survivors of a fault, {self.where()}",
            ("fault", "algorithm", "transport"),
            (
                "longest gap ms",
                "limit",
                "steps lost",
                "twice",
                "drift",
                "only slow, excluded",
                "exit code",
                "left behind",
                "lines lost",
                "",
            ),
        )
        last = ""
        for one in self.outcomes:
            fault = BY_NAME[one.fault]
            if last not in ("", one.fault):
                table.add_section()
            table.add_row(
                fault.title if one.fault != last else "",
                one.algorithm,
                one.transport,
                f"{one.gap_ms:.0f}",
                f"{fault.limit_ms:.0f}" if fault.limit_ms is not None else "",
                str(one.lost_steps),
                str(one.double_steps),
                f"{one.drift:.1g}",
                str(one.excluded),
                "killed" if one.exit_code is None else str(one.exit_code),
                str(one.left),
                str(one.lines_lost),
                verdict(one),
            )
            last = one.fault
        show_table(table)

    def _print_costs(self) -> None:
        table = new_table(
            "cost of survival while nothing fails, jobs in turns",
            ("algorithm", "transport"),
            ("on ms/step", "off ms/step", "cost", "limit"),
        )
        for one in self.costs:
            table.add_row(
                one.algorithm,
                one.transport,
                f"{one.on_ms:.2f}",
                f"{one.off_ms:.2f}",
                f"{100 * one.cost:+.2f} %",
                f"{100 * COST_LIMIT:g} %",
            )
        show_table(table)

    def _print_goodputs(self) -> None:
        table = new_table(
            "pace of the median survivor with repeated failures",
            ("algorithm", "transport"),
            (
                "ranks",
                "kills",
                "every",
                "steps/s",
                "clean",
                "share",
                "limit",
                "rank-steps",
            ),
        )
        for one in self.goodputs:
            table.add_row(
                one.algorithm,
                one.transport,
                str(one.ranks),
                str(one.failures),
                f"{one.every_s:.1f} s",
                f"{one.steps_per_s:.2f}",
                f"{one.clean_steps_per_s:.2f}",
                f"{100 * one.share:.1f} %",
                f"{100 * one.limit:g} %" if one.limit is not None else "",
                f"{100 * one.rank_steps:.0f} %",
            )
        show_table(table)

    def _print_joins(self) -> None:
        table = new_table(
            f"pauses of the others at a join, {self.where()}",
            ("algorithm", "transport", "model"),
            (
                "ranks",
                "ms/step",
                "longest gap ms",
                "limit",
                "during its import",
                "import s",
                "first step s after init",
            ),
        )
        for one in self.joins:
            table.add_row(
                one.algorithm,
                one.transport,
                one.layers,
                str(one.ranks),
                f"{one.step_ms:.0f}",
                f"{one.gap_ms:.0f}",
                f"{one.limit_ms:.0f}" if one.limit_ms is not None else "",
                f"{one.import_gap_ms:.0f}",
                f"{one.import_s:.1f}",
                f"{one.first_step_s:.1f}",
            )
        show_table(table)


def verdict(outcome: Outcome) -> str:
    """Return whether an outcome is within its limits, in a word or two."""
    if not outcome.goes_on:
        return "FAILED"
    within = outcome.passes(BY_NAME[outcome.fault].limit_ms)
    return "ok" if within else "over the limit"
