"""Each public name of bluecomm has a docstring that begins with one line."""

import ast
from pathlib import Path

import pytest

import bluecomm

ROOT = Path(__file__).parents[2]
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SOURCES = sorted((ROOT / "bluecomm").rglob("*.py"))


def is_public(name):
    return not name.startswith("_")


def public_definitions(node):
    """Yield (name, node) of the public functions, classes and methods of a module."""
    for child in node.body:
        if isinstance(child, DEFINITIONS) and is_public(child.name):
            yield child.name, child
            if isinstance(child, ast.ClassDef):
                for name, method in public_definitions(child):
                    yield f"{child.name}.{name}", method


TREES = {path: ast.parse(path.read_text()) for path in SOURCES}
CLASSES = {
    node.name: node
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


def is_documented_above(class_name, method):
    """Return whether a class from which this one derives documents the method."""
    if class_name not in CLASSES:
        return False
    for base in CLASSES[class_name].bases:
        # Generic[T] and package.Base are known by their last name.
        name = ast.unparse(base).split("[")[0].split(".")[-1]
        above = {
            child.name: ast.get_docstring(child)
            for child in getattr(CLASSES.get(name), "body", [])
            if isinstance(child, DEFINITIONS)
        }
        if above.get(method) or is_documented_above(name, method):
            return True
    return False


def complaint(docstring):
    """Return what is wrong with a docstring, or ``None``."""
    if not docstring:
        return "has no docstring"
    first = docstring.splitlines()[0]
    if not first[0].isupper() and not first.startswith(("``", '"')):
        return f"starts lower-case: {first}"
    if not first.endswith("."):
        return f"has a first line that does not end with a period: {first}"
    return None


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_public_definition_has_a_docstring(path):
    tree = TREES[path]
    wrong = []
    for name, node in [(path.stem, tree), *public_definitions(tree)]:
        docstring = ast.get_docstring(node)
        # An override need not repeat the contract of its interface.
        if docstring is None and is_documented_above(*name.rpartition(".")[::2]):
            continue
        problem = complaint(docstring)
        if problem:
            wrong.append(f"{path.relative_to(ROOT)}: {name} {problem}")
    assert not wrong, "\n".join(wrong)


def test_each_exported_function_and_class_has_a_docstring():
    names = getattr(bluecomm, "__all__", [])
    values = {name: getattr(bluecomm, name) for name in names if is_public(name)}
    wrong = [
        f"bluecomm.{name} {problem}"
        for name, value in values.items()
        if callable(value) and (problem := complaint(value.__doc__))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("docstring", "problem"),
    [
        (None, "has no docstring"),
        ("", "has no docstring"),
        ("return it.", "starts lower-case: return it."),
        ("Return it", "has a first line that does not end with a period: Return it"),
        ("Return it.\n\nmore", None),
        ("``x`` is given.", None),
    ],
)
def test_complaints(docstring, problem):
    assert complaint(docstring) == problem
