"""The final report: the first failure, its cause, and processes that are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bfrun.driver.leftovers import Leftovers
from bfrun.driver.membership import Failure, first_failure
from bfrun.wording import count, format_ranks

# Losses that the report lists one by one.
_MOST_LOSSES = 16


@dataclass(frozen=True)
class Verdict:
    """How a job ended.

    Attributes:
        exit_code: 0, the code of the first failure, or 128 + the user's signal.
        report: Lines for the terminal; empty if there is nothing to report.
        unread: Whether the user ended the job while nobody read its output.
        lost: The ranks whose failure the job has survived.
    """

    exit_code: int
    report: str
    unread: bool = False
    lost: tuple[int, ...] = ()


def make_verdict(
    failures: Sequence[Failure],
    leftovers: Leftovers,
    *,
    losses: Sequence[Failure] = (),
    joined: Collection[int] = (),
    left: Collection[int] = (),
    world_size: int = 0,
    interrupted_by: str | None = None,
    interrupted_code: int = 0,
    tails: Mapping[int, Sequence[str]],
    log_paths: Mapping[int, str],
    left_early: Mapping[int, str] | None = None,
    shown: Collection[int] = (),
    verbose: bool = False,
    hint_of: Callable[[int, Sequence[str]], str] = lambda rank, tail: "",
) -> Verdict:
    """Return the exit code and the final report.

    Args:
        failures: Failures that have ended the job, in order of arrival.
        leftovers: Processes that are left on the hosts.
        losses: Failures that the job has survived, in order of arrival.
        joined: Ranks that were never lost, or have joined again since.
        left: Ranks that have left the job while it went on.
        world_size: Number of ranks, also of those that are lost or have left. Ranks
            with higher numbers have never joined.
        interrupted_by: Name of the signal that ended the job, if the user sent one.
        interrupted_code: Exit code in that case.
        tails: Last lines of each rank's stderr.
        log_paths: Path of each rank's full stderr, if it is logged.
        left_early: How ranks that have not failed ended, by rank.
        shown: Ranks whose stderr is on the terminal already, with their prefix.
        verbose: Report leftovers even if there are none.
        hint_of: Returns advice for a rank that failed with these last lines, or "".
    """
    first = first_failure(failures, tails)
    if first is None:
        if interrupted_by is None:
            if losses:
                gone = [loss.rank for loss in losses if loss.rank not in joined]
                lost = tuple(dict.fromkeys(r for r in gone if r < world_size))
                rest = world_size - len({*lost, *left})
                text = f"bfrun: finished with {rest} of {count(world_size, 'rank')}"
                return Verdict(0, f"{text}; {_lost(losses)}; {leftovers}", lost=lost)
            unclean = any(leftovers.left.values()) or leftovers.silent
            return Verdict(0, f"bfrun: {leftovers}" if unclean or verbose else "")
        text = f"bfrun: ended by {interrupted_by}; {leftovers}"
        return Verdict(interrupted_code, text)
    lines = []
    if losses:
        lines.append(f"  before: {_lost(losses)}")
    blame = _blame(first, left_early or {})
    if first.hint:
        lines.append(f"  cause: {first.hint}")
    tail = tails.get(first.rank, ())
    if tail and first.rank in shown:
        lines.append(f"  its stderr is above, in the lines with [{first.rank}]")
    elif tail:
        lines.append(f"  last lines of stderr of rank {first.rank}:")
        lines += [f"    {line}" for line in tail]
    hint = hint_of(first.rank, tail)
    if hint:
        lines.append(f"  hint: {hint}")
    if first.rank in log_paths:
        lines.append(f"  full stderr: {log_paths[first.rank]}")
    later = [failure for failure in failures if failure is not first]
    if later:
        lines.append(f"  later failures: {_fold(later)}")
    if lines or blame != first.text:
        head = f"bfrun: first failure, {first.at_s:.1f} s after the start: {first.text}"
        lines.insert(0, head)
    lines.append(f"bfrun: job failed: {blame}; {leftovers}")
    return Verdict(first.exit_code, "\n".join(lines))


def _blame(first: Failure, left_early: Mapping[int, str]) -> str:
    """Return the failure, or the early end of the rank that caused it."""
    for peer in first.peers:
        if peer in left_early:
            return f"{left_early[peer]} while rank {first.rank} still needed it"
    return first.text


def _lost(losses: Sequence[Failure]) -> str:
    """Return the failures that a job has survived, as a phrase.

    In a long job with restarts there may be hundreds, which are only counted.
    """
    if len(losses) > _MOST_LOSSES:
        causes = Counter(loss.cause for loss in losses).most_common()
        each = ", ".join(f"{number} x {cause}" for cause, number in causes)
        ranks = format_ranks(sorted({loss.rank for loss in losses}), noun=True)
        return f"lost {ranks} ({len(losses)} losses: {each})"
    return "lost " + ", ".join(
        f"rank {loss.rank} ({loss.cause}) after {loss.at_s:.1f} s" for loss in losses
    )


def _fold(failures: Sequence[Failure]) -> str:
    """Return failures as one line, grouped by cause."""
    ranks: dict[str, list[int]] = {}
    for failure in failures:
        ranks.setdefault(failure.cause, []).append(failure.rank)
    return "; ".join(
        f"{format_ranks(who, noun=True)}: {cause}" for cause, who in ranks.items()
    )
