"""Refuses calls whose arguments Python itself rejects, such as a misspelled keyword.

Python raises before the first line of the function, so the function cannot tell the
other ranks. The forms of an operation (``forms``) tell them already; public functions
that are not derived from a form need this decorator.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from bluecomm.ops.refusal import (
    Describe,
    Operation,
    first_operations,
    given_arguments,
    is_told,
    refuse,
)
from bluecomm.runtime import Communicator, current_communicator

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _given_ranks(arguments: Mapping[str, Any]) -> Communicator:
    return current_communicator(arguments.get("process_set"))


def refuse_unfit_calls(
    describe: Describe, find: Callable[[Mapping[str, Any]], Communicator] = _given_ranks
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Tell the other ranks of calls with missing, unknown or repeated arguments.

    Args:
        describe: Returns the operations that the function starts first.
        find: Returns the ranks that take part, from the arguments of the call. Default:
            those of ``process_set``, or all.
    """

    def decorate(
        function: Callable[Arguments, Result],
    ) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if not is_told(error) and not _fits(function, args, kwargs):
                    # Whatever is wrong here must not hide the caller's mistake.
                    with contextlib.suppress(Exception):
                        arguments = given_arguments(function, args, kwargs)
                        comm = find(arguments)
                        refuse(comm, describe(comm, arguments), error)
                raise

        return call

    return decorate


def first(function: str, *operations: tuple[str, str]) -> Describe:
    """Describe a function that matches its calls by their order.

    Args:
        function: Name of the function, under which its calls are numbered.
        operations: Kinds of the operations that it starts first, and what follows the
            name of the call in their names.
    """

    def describe(comm: Communicator, _: Mapping[str, Any]) -> Iterator[Operation]:
        return first_operations(comm, function, None, operations)

    return describe


def first_named(function: str, *operations: tuple[str, str]) -> Describe:
    """Describe a function that matches its calls by ``name``, if that is given.

    Arguments are those of ``first``.
    """

    def describe(
        comm: Communicator, arguments: Mapping[str, Any]
    ) -> Iterator[Operation]:
        name = arguments.get("name")
        if isinstance(name, str | None):
            yield from first_operations(comm, function, name, operations)

    return describe


def _fits(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
