"""The public forms of an operation: blocking or not, in place or not.

An operation is written once, as a function that starts it in any form. Its public
functions are derived from that one and take the same arguments::

    broadcast = blocking(_broadcast)
    broadcast_nonblocking = nonblocking(_broadcast)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from bluecomm.ops.refusal import refuse_form
from bluecomm.runtime import Handle

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Form(NamedTuple):
    """How an operation was called.

    Attributes:
        blocking: Whether the caller waits for the handle at once.
        in_place: Whether the result is written to the input.
    """

    blocking: bool
    in_place: bool


BLOCKING = Form(blocking=True, in_place=False)
NONBLOCKING = Form(blocking=False, in_place=False)
BLOCKING_IN_PLACE = Form(blocking=True, in_place=True)
NONBLOCKING_IN_PLACE = Form(blocking=False, in_place=True)


def blocking(
    start: Callable[Concatenate[Form, Arguments], Handle[Result]],
) -> Callable[Arguments, Result]:
    """Return the form that returns the result; it has the docstring of ``start``."""

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            handle = start(BLOCKING, *args, **kwargs)
        except Exception as error:
            refuse_form(start, args, kwargs, error)
            raise
        return handle.wait()

    return _published(call, start, BLOCKING, start.__doc__ or "")


def blocking_in_place(
    start: Callable[Concatenate[Form, Arguments], Handle[Result]], summary: str
) -> Callable[Arguments, Result]:
    """Return the form that writes the result to its input and returns that.

    Args:
        start: Starts the operation in any form.
        summary: First line of the docstring.
    """

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            handle = start(BLOCKING_IN_PLACE, *args, **kwargs)
        except Exception as error:
            refuse_form(start, args, kwargs, error)
            raise
        return handle.wait()

    doc = f"{summary}\n\nArguments and errors are those of ``{_stem(start)}``."
    return _published(call, start, BLOCKING_IN_PLACE, doc)


def nonblocking(
    start: Callable[Concatenate[Form, Arguments], Handle[Result]],
    note: str = "",
    *,
    has_input: bool = True,
) -> Callable[Arguments, Handle[Result]]:
    """Return the form that returns a handle at once.

    Args:
        start: Starts the operation in any form.
        note: Sentence for the docstring.
        has_input: The operation reads a tensor of the caller, until it has ended.
    """

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Handle[Result]:
        try:
            return start(NONBLOCKING, *args, **kwargs)
        except Exception as error:
            refuse_form(start, args, kwargs, error)
            raise

    rule = "The input must not change" if has_input else ""
    return _published(call, start, NONBLOCKING, _doc_of_nonblocking(start, note, rule))


def nonblocking_in_place(
    start: Callable[Concatenate[Form, Arguments], Handle[Result]], note: str = ""
) -> Callable[Arguments, Handle[Result]]:
    """Return the form that returns a handle at once and writes to its input.

    Args:
        start: Starts the operation in any form.
        note: Sentence for the docstring.
    """

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Handle[Result]:
        try:
            return start(NONBLOCKING_IN_PLACE, *args, **kwargs)
        except Exception as error:
            refuse_form(start, args, kwargs, error)
            raise

    doc = _doc_of_nonblocking(start, note, "The input must not be used", in_place=True)
    return _published(call, start, NONBLOCKING_IN_PLACE, doc)


def _stem(start: Callable[..., Any]) -> str:
    """Return the name of the blocking form."""
    return start.__name__.strip("_")


def _doc_of_nonblocking(
    start: Callable[..., Any], note: str, rule: str, *, in_place: bool = False
) -> str:
    stem = _stem(start)
    started = f"{stem}_" if in_place else stem
    return (
        f"Start ``{started}`` and return a handle at once.\n\n"
        + (f"{rule} before the handle has been waited for.\n" if rule else "")
        + (f"{note}\n" if note else "")
        + f"Arguments, result and errors are those of ``{stem}``."
    )


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _published(
    call: _Function, start: Callable[..., Any], form: Form, doc: str
) -> _Function:
    """Return ``call`` as the public function of a form: name, signature, docstring."""
    # Python's errors about missing or unknown arguments show this name to users.
    start.__qualname__ = _stem(start)
    functools.update_wrapper(call, start)
    name = _stem(start) + "_nonblocking" * (not form.blocking) + "_" * form.in_place
    signature = inspect.signature(start)
    _, *parameters = signature.parameters.values()
    returned = signature.return_annotation
    if form.blocking:
        returned = returned.removeprefix("Handle[").removesuffix("]")
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    call.__annotations__ = {**annotations, "return": returned}
    call.__dict__["__signature__"] = signature.replace(
        parameters=parameters, return_annotation=returned
    )
    return call
