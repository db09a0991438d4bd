"""Refuses calls that Python rejects, with Horovod's process sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from bluecomm.compat.horovod.process_sets import communicator_of
from bluecomm.ops.refusal import Describe
from bluecomm.ops.tensor_groups import refused_group
from bluecomm.ops.unfit_calls import first_named, refuse_unfit_calls

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def refuse_unfit(
    kind: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Tell the other ranks of unfit calls of a function that starts one operation."""
    return refuse_unfit_as(first_named(kind, (kind, "")))


def refuse_unfit_group(
    kind: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Tell the other ranks of unfit calls of a function of several tensors."""
    return refuse_unfit_as(refused_group(kind))


def refuse_unfit_as(
    describe: Describe,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Tell the other ranks of unfit calls; see ``bluecomm.ops.unfit_calls``."""
    return refuse_unfit_calls(
        describe, lambda arguments: communicator_of(arguments.get("process_set"))
    )
