"""Reads the hosts, tasks and cores of a Slurm allocation (``SLURM_*``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bfrun.errors import LaunchError
from bfrun.hosts import Host

_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?\Z")
_NUMBERS = re.compile(r"[0-9]+(?:-[0-9]+)?\Z")
_MOST_HOSTS = 100_000


@dataclass(frozen=True)
class Allocation:
    """The hosts that Slurm has allocated to a job.

    Attributes:
        job: Number of the job.
        hosts: Hosts in Slurm's order. Their slots are the tasks requested per host
            (``-n``, ``--ntasks-per-node``); None if no number was requested.
        cpus: Cores that the job has on each host.
    """

    job: str
    hosts: tuple[Host, ...]
    cpus: Mapping[Host, int]


def is_in_allocation(environ: Mapping[str, str]) -> bool:
    """Return whether this process belongs to a Slurm job."""
    return "SLURM_JOB_ID" in environ and "SLURM_JOB_NODELIST" in environ


def read_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return the allocation that this process is in.

    Raises:
        LaunchError: There is no allocation, this process is one of several tasks of
            ``srun``, or a variable cannot be parsed.
    """
    if not is_in_allocation(environ):
        raise LaunchError(
            "--launcher slurm: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set; run "
            "bfrun in a batch script (sbatch) or below salloc"
        )
    job = environ["SLURM_JOB_ID"]
    if "SLURM_STEP_ID" in environ and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        raise LaunchError(
            f"bfrun is one of {environ['SLURM_STEP_NUM_TASKS']} tasks of srun (job "
            f"{job}), and each would start a whole job; run bfrun once, without srun, "
            "or run srun --mpi=pmix without bfrun"
        )
    if "SLURM_HET_SIZE" in environ:
        raise LaunchError(
            f"Slurm job {job} is heterogeneous, which bfrun does not support; name "
            "the hosts with -H"
        )
    names = expand_hostlist(environ["SLURM_JOB_NODELIST"])
    asked = "SLURM_NTASKS" in environ or "SLURM_NTASKS_PER_NODE" in environ
    tasks: list[int] | list[None] = [None] * len(names)
    if asked:
        tasks = _counts(environ, "SLURM_TASKS_PER_NODE", len(names))
    hosts = tuple(Host(name, slots) for name, slots in zip(names, tasks, strict=True))
    cpus = _counts(environ, "SLURM_JOB_CPUS_PER_NODE", len(names))
    return Allocation(job, hosts, dict(zip(hosts, cpus, strict=True)))


def _counts(environ: Mapping[str, str], name: str, expected: int) -> list[int]:
    """Return the numbers in text such as ``4(x2),1``, one for each host."""
    counts: list[int] = []
    for part in environ.get(name, "").split(","):
        found = _COUNT.match(part)
        if found:
            counts += [int(found[1])] * min(int(found[2] or 1), expected + 1)
    if len(counts) != expected or min(counts) < 1:
        raise LaunchError(
            f"{name} '{environ.get(name, '')}' does not have a number for each of the "
            f"{expected} hosts in SLURM_JOB_NODELIST; name the hosts with -H"
        )
    return counts


def expand_hostlist(text: str) -> list[str]:
    """Return the hosts in a list as Slurm writes it, such as ``a[1-3,07],b``.

    Raises:
        LaunchError: The text is not such a list, or has more than 100000 hosts.
    """
    names: list[str] = []
    for part in _split(text):
        names += _expand(part, text)
        if len(names) > _MOST_HOSTS:
            raise _bad(text)
    if not names:
        raise _bad(text)
    return names


def _split(text: str) -> Iterator[str]:
    """Split ``text`` at the commas outside of brackets."""
    start = depth = 0
    for position, letter in enumerate(f"{text},"):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if not text[start:position]:
                raise _bad(text)
            yield text[start:position]
            start = position + 1
    if depth != 0:
        raise _bad(text)


def _expand(part: str, text: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", part):
            raise _bad(text)
        return [part]
    inside, _, after = rest.partition("]")
    tails = _expand(after, text) if after else [""]
    names = []
    for numbers in inside.split(","):
        if not _NUMBERS.match(numbers):
            raise _bad(text)
        first, _, last = numbers.partition("-")
        values = range(int(first), int(last or first) + 1)
        if not 0 < len(values) * len(tails) <= _MOST_HOSTS:
            raise _bad(text)
        # Leading zeros belong to the name.
        names += [
            f"{before}{value:0{len(first)}d}{tail}"
            for value in values
            for tail in tails
        ]
    return names


def _bad(text: str) -> LaunchError:
    return LaunchError(
        f"SLURM_JOB_NODELIST '{text[:80]}' is not a list of hosts that bfrun can "
        "parse; name the hosts with -H"
    )
