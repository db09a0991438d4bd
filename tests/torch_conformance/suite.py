"""torch's own tests of a backend, in ranks that are forked from this process.

torch decides when its module is imported which cases a backend runs, from a list of
names. So the module is imported as for Gloo, whose cases all run on CPUs, and then told
the name of the backend under test.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

WORLD_SIZE = 4
_BARRIER_LIMIT_S = 120
# Words in the code of decorators that end a case on a machine without GPUs.
_GPU_WORDS = ("no_cuda", "multi-gpu-", "skip_if_no_gpu")
# Removed at exit; the tests write to it.
_folder = tempfile.TemporaryDirectory()


def load(backend: str) -> type[unittest.TestCase]:
    """Return torch's test case for ``backend``; it forks the ranks of each test."""
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(WORLD_SIZE),
        TEMP_DIR=_folder.name,
        MASTER_ADDR="localhost",
    )
    _stand_in_for_expecttest()
    from torch.testing._internal.distributed import distributed_test

    module: Any = distributed_test
    module.BACKEND = backend
    # Cases about subgroups use two ranks, but run only with 8 ranks, or MPI.
    os.environ["BACKEND"] = "mpi"

    class BackendTest(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            self._fork_processes()

        def _fork_processes(self) -> None:
            import torch

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _barrier(self, *args: Any, **kwargs: Any) -> None:
            kwargs.setdefault("timeout", _BARRIER_LIMIT_S)
            module.Barrier.sync(*args, **kwargs)

    return BackendTest


def _stand_in_for_expecttest() -> None:
    """Let torch's classes derive from one of expecttest, which no case here uses."""
    if importlib.util.find_spec("expecttest") is None:
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module


def names(case: type[unittest.TestCase]) -> list[str]:
    """Return the names of all tests, sorted."""
    return unittest.TestLoader().getTestCaseNames(case)


def unfit(case: type[unittest.TestCase], name: str) -> str | None:
    """Return why a test does not run on CPUs with the names of Gloo, or None."""
    for function in _wrapped(getattr(case, name)):
        if getattr(function, "__unittest_skip__", False):
            return str(getattr(function, "__unittest_skip_why__", "skipped by torch"))
        code = getattr(function, "__code__", None)
        constants = code.co_consts if code is not None else ()
        if any(isinstance(c, str) and c.startswith(_GPU_WORDS) for c in constants):
            return "needs GPUs"
    return None


def _wrapped(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)  # type: ignore[assignment]


class Outcome(unittest.TestResult):
    """The outcome of one test."""

    def verdict(self) -> tuple[str, str]:
        """Return "passed", "skipped" or "failed", and its reason."""
        if self.skipped:
            return "skipped", self.skipped[0][1]
        if self.wasSuccessful():
            return "passed", ""
        return "failed", "\n".join(text for _, text in self.failures + self.errors)


def run(case: type[unittest.TestCase], name: str) -> tuple[str, str, float, str]:
    """Run one test; return its verdict, reason, seconds and output."""
    outcome = Outcome()
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        kept = os.dup(1), os.dup(2)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            case(name).run(outcome)
        finally:
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])
        output.seek(0)
        text = output.read()
    verdict, reason = outcome.verdict()
    return verdict, reason, time.monotonic() - began, text
