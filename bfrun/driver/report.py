"""The last thing on the terminal: who failed first, why, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bfrun.driver.membership import Failure, first_failure
from bfrun.output.ranges import format_ranks


@dataclass(frozen=True)
class Leftovers:
    """What agents counted at the end.

    Attributes:
        hosts: Number of hosts of the job.
        left: Host name to number of processes that could not be ended.
        silent: Hosts that could not be asked.
    """

    hosts: int
    left: Mapping[str, int]
    silent: Sequence[str] = ()

    def __str__(self) -> str:
        if not self.hosts:
            return "no host has told what is left there"
        total = sum(self.left.values())
        asked = self.hosts - len(self.silent)
        text = f"{total} {_plural(total, 'process', 'es')} left on {asked} "
        text += _plural(asked, "host")
        bad = [f"{host}: {count}" for host, count in self.left.items() if count]
        if bad:
            text += f" ({', '.join(bad)})"
        if self.silent:
            text += (
                f"; {', '.join(self.silent)} cannot be asked, the guard there ends "
                "its processes within 6 s"
            )
        return text


@dataclass(frozen=True)
class Verdict:
    """How a job ended.

    Attributes:
        exit_code: 0, or that of the first failure, or 128 + signal of the user's.
        report: Lines for the terminal; empty when there is nothing to say.
        unread: The user ended the job while nobody took its output.
    """

    exit_code: int
    report: str
    unread: bool = False


def make_verdict(
    failures: Sequence[Failure],
    leftovers: Leftovers,
    *,
    interrupted_by: str | None = None,
    interrupted_code: int = 0,
    tails: Mapping[int, Sequence[str]],
    log_paths: Mapping[int, str],
    verbose: bool = False,
) -> Verdict:
    """Return exit code and final report.

    Args:
        failures: In order of arrival.
        leftovers: What is left on the hosts.
        interrupted_by: What the user did to end the job, such as ``Ctrl-C``.
        interrupted_code: Exit code in that case.
        tails: Last lines of each rank's stderr.
        log_paths: Path of each rank's full stderr, where there is one.
        verbose: Say what is left even if it is nothing.
    """
    first = first_failure(failures, tails)
    if first is None:
        if interrupted_by is None:
            unclean = any(leftovers.left.values()) or leftovers.silent
            return Verdict(0, f"bfrun: {leftovers}" if unclean or verbose else "")
        text = f"bfrun: ended by {interrupted_by}; {leftovers}"
        return Verdict(interrupted_code, text)
    lines = []
    if first.hint:
        lines.append(f"  cause: {first.hint}")
    tail = tails.get(first.rank, ())
    if tail:
        lines.append(f"  last lines of stderr of rank {first.rank}:")
        lines += [f"    {line}" for line in tail]
    if first.rank in log_paths:
        lines.append(f"  full stderr: {log_paths[first.rank]}")
    later = [failure for failure in failures if failure is not first]
    if later:
        lines.append(f"  later failures: {_fold(later)}")
    if lines:
        head = f"bfrun: first failure, {first.at_s:.1f} s after the start: {first.text}"
        lines.insert(0, head)
    lines.append(f"bfrun: job failed: {first.text}; {leftovers}")
    return Verdict(first.exit_code, "\n".join(lines))


def _fold(failures: Sequence[Failure]) -> str:
    """Return failures on one line, those of equal cause together."""
    ranks: dict[str, list[int]] = {}
    for failure in failures:
        ranks.setdefault(failure.cause, []).append(failure.rank)
    return "; ".join(
        f"{_plural(len(who), 'rank')} {format_ranks(who)}: {cause}"
        for cause, who in ranks.items()
    )


def _plural(count: int, word: str, ending: str = "s") -> str:
    return word if count == 1 else word + ending
