"""The devices of a check, and the error of one that cannot run."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


class NotRunError(Exception):
    """A check cannot run here; the text says why."""


@dataclasses.dataclass(frozen=True)
class Job:
    """The devices that a check runs on.

    Attributes:
        run_ranks: Runs a body on ranks with devices, as ``run_ranks_on_gpus`` does.
        is_real: Whether the devices are GPUs. Otherwise sizes are small, and times
            have no verdict.
        folder: Empty folder for files of the check.
    """

    run_ranks: Callable[..., list[Any]]
    is_real: bool
    folder: Path

    def size(self, count: int) -> int:
        """Return a number of elements; few without a GPU."""
        return count if self.is_real else max(1, count >> 18)

    def judge(self, measured: float, target: float, what: str, unit: str) -> str:
        """Return a line with a figure and its target.

        Args:
            measured: The figure; less than the target fails.
            target: The target.
            what: Name of the figure.
            unit: Its unit.

        Raises:
            AssertionError: A GPU misses the target; the text is the line.
        """
        met = measured >= target
        verdict = ("met" if met else "MISSED") if self.is_real else "no verdict"
        line = f"{what}: {measured:.3g} {unit}, target {target:g}: {verdict}"
        if self.is_real and not met:
            raise AssertionError(line)
        return line


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the summary.

    Attributes:
        run: Takes the job and returns the details of a success. Raises ``NotRunError``
            if it cannot run, and anything else if it has failed.
        limit_s: Seconds after which its processes are killed.
        environment: Variables of its process, such as those that torch reads once.
        needs_gpu: Whether it cannot run over the fake.
    """

    run: Callable[[Job], str]
    limit_s: float = 90.0
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs_gpu: bool = False


def cases_of(module: str) -> ModuleType:
    """Return a module of tests, whose bodies and tables also run on a GPU.

    Raises:
        NotRunError: pytest, which the tests import, is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == "pytest":
            raise NotRunError(f"{module} needs pytest, which is missing") from None
        raise
