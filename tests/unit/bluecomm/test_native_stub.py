"""The stubs of the extensions: stubtest compares names, this test arguments.

pybind11 writes the arguments of a function into the first line of its docstring.
"""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

import bluecomm._native
import bluecomm.bench._raw_memory

ROOT = Path(__file__).parents[3]


class Argument(NamedTuple):
    name: str
    has_default: bool
    is_keyword_only: bool


def split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def documented(docstring: str) -> list[Argument]:
    """Return the arguments in the docstring that pybind11 has written."""
    first = docstring.splitlines()[0]
    inside = first.partition("(")[2].rpartition(") ->")[0]
    found, keyword_only = [], False
    for part in split(inside):
        if part == "*":
            keyword_only = True
        else:
            name = part.partition(":")[0]
            found.append(Argument(name, " = " in part, keyword_only))
    return found


def stubbed(function: ast.FunctionDef) -> list[Argument]:
    """Return the arguments in the stub."""
    args = function.args
    plain = [*args.posonlyargs, *args.args]
    required = len(plain) - len(args.defaults)
    return [
        *(Argument(arg.arg, i >= required, False) for i, arg in enumerate(plain)),
        *(
            Argument(arg.arg, default is not None, True)
            for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
        ),
    ]


def functions_of(module):
    """Yield (name, stub, function) for each documented function of the extension."""
    path = ROOT / (module.__name__.replace(".", "/") + ".pyi")
    for node in ast.parse(path.read_text()).body:
        made = getattr(module, getattr(node, "name", ""), None)
        if isinstance(node, ast.FunctionDef):
            yield node.name, node, made
        elif isinstance(node, ast.ClassDef) and made is not None:
            for child in node.body:
                function = vars(made).get(getattr(child, "name", ""))
                if function is not None and not isinstance(function, property):
                    # From the class, because vars() returns unbound static methods.
                    function = getattr(made, child.name)
                    yield f"{node.name}.{child.name}", child, function


@pytest.mark.parametrize("module", [bluecomm._native, bluecomm.bench._raw_memory])
def test_arguments_are_those_of_the_extension(module):
    wrong, seen = [], 0
    for name, stub, function in functions_of(module):
        mine, theirs = stubbed(stub), documented(function.__doc__)
        # The binding may leave arguments without a name.
        unnamed = [one.name.startswith("arg") for one in theirs]
        shown = [
            one._replace(name=two.name) if hidden else one
            for one, two, hidden in zip(theirs, mine, unnamed, strict=False)
        ]
        if mine != [*shown, *theirs[len(shown) :]]:
            wrong.append(f"{name}: the stub has {mine}, the extension {theirs}")
        seen += 1
    assert not wrong, "\n".join(wrong)
    assert seen > 3


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f() -> None", []),
        (
            "f(self: m.A, x: dict[str, int] = {}, *, y: float) -> tuple[int, int]",
            [
                Argument("self", False, False),
                Argument("x", True, False),
                Argument("y", False, True),
            ],
        ),
        (
            "f(x: collections.abc.Callable[[int], None]) -> None",
            [Argument("x", False, False)],
        ),
    ],
)
def test_docstrings_are_read(line, expected):
    assert documented(line) == expected
