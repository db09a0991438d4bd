"""The outcomes of checks: printed and written at once, and summed up at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class Outcome(NamedTuple):
    """How a check has ended.

    Attributes:
        part: The part of the check.
        check: Its name.
        verdict: ``PASS``, ``FAIL`` or ``NOT RUN``.
        detail: Figures, the error, or the reason.
        seconds: The seconds that it took.
    """

    part: str
    check: str
    verdict: str
    detail: str
    seconds: float


class Report:
    """Collects outcomes.

    Args:
        output: File to which each outcome is appended as a line of JSON.
    """

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Print an outcome, and write it to the file."""
        self._outcomes.append(outcome)
        print(f"{_line_of(outcome)}\n{_indented(outcome.detail)}", flush=True)
        if self._output is not None:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            with open(self._output, "a") as file:
                file.write(json.dumps(outcome._asdict()) + "\n")

    def print_summary(self) -> None:
        """Print a line per check."""
        print("\nSummary")
        for outcome in self._outcomes:
            print(_line_of(outcome))
        verdicts = [outcome.verdict for outcome in self._outcomes]
        counts = (f"{verdicts.count(one)} {one}" for one in ("PASS", "FAIL", "NOT RUN"))
        print(", ".join(counts))

    @property
    def exit_code(self) -> int:
        """1 if a check has failed, 2 if one could not run or none was asked for."""
        verdicts = {outcome.verdict for outcome in self._outcomes}
        if "FAIL" in verdicts:
            return 1
        return 0 if verdicts == {"PASS"} else 2


def _line_of(outcome: Outcome) -> str:
    name = f"{outcome.part}: {outcome.check}"
    return f"{outcome.verdict:8}{name:56}{outcome.seconds:6.1f} s"


def _indented(text: str) -> str:
    return "".join(f"        {line}\n" for line in text.splitlines()).rstrip("\n")
