"""Refused calls: this rank tells the others that it does not make a call.

A call is refused if it raises before its operation starts, because of an argument for
example. It takes its number nevertheless, so that later calls still meet the right
partners, and the other ranks' calls of that number fail with the reason.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from bluecomm.errors import BluecommError, CommunicationTimeout, MismatchError
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.call import Call
from bluecomm.runtime.epochs.transaction import TransactionHandle
from bluecomm.runtime.failure import is_late, reason_of

if TYPE_CHECKING:
    from bluecomm._native import Parameters

# Kind, name and parameters of an operation. Without parameters the whole group takes
# part in it, or it is unknown who does.
Operation = tuple[str, str, "Parameters | None"]
# Returns the operations that a call would have started first, from the call's
# arguments. Takes the number of a call without a name.
Describe = Callable[[Communicator, Mapping[str, Any]], Iterable[Operation]]

# Returns the members that take part in a call, from the call's arguments.
GroupOf = Callable[[Communicator, Mapping[str, Any]], Communicator]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Error = TypeVar("_Error", bound=Exception)

_TOLD = "_told_to_other_ranks"
_describe: dict[Callable[..., Any], Describe] = {}
_group_of: dict[Callable[..., Any], GroupOf] = {}


def describe_refused(
    describe: Describe, group_of: GroupOf | None = None
) -> Callable[[_Function], _Function]:
    """Say which operations a function starts first, if not one of its own name.

    Args:
        describe: Returns the operations, which are those of ``group_of``, if given.
        group_of: Returns the members that take part.
    """

    def register(start: _Function) -> _Function:
        _describe[start] = describe
        if group_of is not None:
            _group_of[start] = group_of
        return start

    return register


def told(error: _Error) -> _Error:
    """Return an error after noting that the other ranks know of it, or raise it too."""
    error.__dict__[_TOLD] = True
    return error


def is_told(error: Exception) -> bool:
    """Return whether an error is no refusal, or a refusal that others know of."""
    return isinstance(error, BluecommError) or is_marked(error)


def is_marked(error: Exception) -> bool:
    """Return whether ``told`` has marked an error."""
    return _TOLD in error.__dict__


def is_mismatch(error: Exception) -> bool:
    """Return whether a call has failed on all ranks, because their calls differ."""
    return isinstance(error, MismatchError) and not is_late(error)


def refuse(
    comm: Communicator, operations: Iterable[Operation], error: Exception
) -> None:
    """Take the numbers of operations that this rank refuses, and tell the others.

    Does nothing where no communication is possible. Never raises, because the caller
    is about to raise ``error``.
    """
    told(error)
    reason = reason_of(error)
    with contextlib.suppress(Exception):
        for kind, name, parameters in operations:
            comm.refuse(kind, name, reason, parameters)


def refuse_start(
    comm: Communicator,
    kind: str,
    name: str | None,
    parameters: Parameters | None,
    call: Call[Any] | None,
    error: Exception,
) -> None:
    """Refuse one operation, whose start has raised ``error``.

    Args:
        comm: Ranks that take part.
        kind: The engine's name of the operation.
        name: Name that the caller gave.
        parameters: Parameters that the caller gave.
        call: The call, if it has been made. The engine itself refuses one that it has
            got.
        error: The exception that the start has raised.
    """
    if is_told(error):
        return
    if call is not None and call.is_submitted:
        told(error)
        return
    given = name if call is None else call.name
    if isinstance(given, str | None):
        refuse(comm, _one(comm, kind, given, parameters), error)


def refuse_follow_up(
    comm: Communicator, kind: str, name: str, first: Handle[Any], error: Exception
) -> None:
    """Tell members whose first call has not failed that the second will not come.

    If the first call has failed on all members, this tells nobody, because no member
    starts the second.

    Args:
        comm: Ranks that take part.
        kind: The engine's name of the operation.
        name: Name of the second call.
        first: Handle of the first call, which exchanges facts on the host.
        error: The failure of the first call.
    """
    fails_on_all = is_mismatch(error)
    if isinstance(first, TransactionHandle):
        # A transaction ends alike on all members, unless its deadline has passed in
        # the barrier of its end, or the failure is that of an earlier operation.
        is_over_time = isinstance(error, CommunicationTimeout)
        was_committing = first.transaction.commit is not None
        fails_on_all = not (is_late(error) or (is_over_time and was_committing))
    if not fails_on_all and not is_marked(error):
        refuse(comm, [(kind, name, None)], error)


def refuse_form(
    start: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> None:
    """Refuse a call of a public operation, which has raised ``error`` at its start.

    Args:
        start: The function that starts the operation in any form.
        args: Positional arguments of the call, without the form.
        kwargs: Keyword arguments of the call.
        error: The exception that the start has raised.
    """
    if is_told(error):
        return
    arguments = given_arguments(start, (None, *args), kwargs)
    if not isinstance(arguments.get("name"), str | None):
        return
    with contextlib.suppress(BluecommError, TypeError):
        comm = current_communicator(arguments.get("process_set"))
        describe = _describe.get(start)
        if describe is None:
            kind = start.__name__.strip("_")
            refuse(comm, _one(comm, kind, arguments.get("name"), None), error)
        else:
            operations = list(describe(comm, arguments))
            if start in _group_of:
                comm = _group_of[start](comm, arguments)
            refuse(comm, operations, error)


@contextlib.contextmanager
def refusing(
    comm: Communicator, function: str, name: str | None, *operations: tuple[str, str]
) -> Iterator[None]:
    """Refuse a call of a function if its arguments prove wrong in this context.

    Args:
        comm: Ranks that take part.
        function: Name of the function, under which calls without a name are numbered.
        name: Name that the caller gave.
        operations: Kinds of the operations that the function starts first, and what
            follows its name in their names.
    """
    try:
        yield
    except Exception as error:
        if not is_told(error):
            refuse(comm, first_operations(comm, function, name, operations), error)
        raise


def first_operations(
    comm: Communicator,
    function: str,
    name: str | None,
    operations: Iterable[tuple[str, str]],
) -> Iterator[Operation]:
    """Yield the operations that a call of a function starts first, and count it.

    Arguments are those of ``refusing``.
    """
    label = comm.name_for(function, name)
    for kind, suffix in operations:
        yield kind, label + suffix, None


def given_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the arguments of a call, as far as the function has them."""
    signature = inspect.signature(function)
    known = {key: kwargs[key] for key in kwargs if key in signature.parameters}
    try:
        bound = signature.bind_partial(*args, **known)
    except TypeError:
        # Too many arguments, or one that is given twice: the first ones count.
        first = dict(zip(_positions(signature), args, strict=False))
        rest = {key: value for key, value in known.items() if key not in first}
        bound = signature.bind_partial(*first.values(), **rest)
    bound.apply_defaults()
    return bound.arguments


def _positions(signature: inspect.Signature) -> list[str]:
    """Return the names of the parameters that may be given by position, in order."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [key for key, value in signature.parameters.items() if value.kind in kinds]


def _one(
    comm: Communicator, kind: str, name: str | None, parameters: Parameters | None
) -> Iterator[Operation]:
    if comm.included:
        yield kind, comm.name_for(kind, name), parameters
