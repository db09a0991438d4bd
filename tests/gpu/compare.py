"""Compares what bodies of tests give with devices and on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.gpu.job import Job
from tests.support.ranks import run_ranks


def compare_bodies(
    job: Job,
    ranks: int,
    bodies: Iterable[Callable[..., Any]],
    *args: Any,
    environment: Mapping[str, str],
    rtol: float = 1e-5,
    atol: float = 1e-6,
    in_group: bool = False,
) -> str:
    """Run each body on ranks with devices and on the host, and return their names.

    All bodies run, also after a failure.

    Args:
        job: The devices.
        ranks: Number of ranks.
        bodies: Bodies of ranks.
        *args: Their arguments.
        environment: Variables of the ranks that have devices.
        rtol: Relative tolerance of results. NCCL may add in another order: k values of
            float32 then differ by at most k * 6e-8 of their sum of magnitudes, which is
            less than 1e-5 for the few ranks here.
        atol: Absolute tolerance, for sums near 0 of values around 1.
        in_group: Whether bodies take one more argument, a folder for the store of a
            process group of torch.

    Raises:
        AssertionError: Some bodies failed, or their results differ; has all texts.
    """
    names, errors = [], []
    for body in bodies:
        names.append(body.__name__)
        on_host, on_devices = (
            [_made(job.folder / f"{body.__name__} {where}")] * in_group
            for where in ("on the host", "on devices")
        )
        expected = run_ranks(ranks, body, *args, *on_host)
        try:
            found = job.run_ranks(
                ranks, body, *args, *on_devices, environment=environment
            )
            torch.testing.assert_close(
                found, expected, rtol=rtol, atol=atol, equal_nan=True
            )
        except AssertionError as error:
            errors.append(f"{body.__name__}: {error}")
    if errors:
        raise AssertionError("\n".join(errors))
    return f"equal to the results on the host: {', '.join(names)}"


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder
