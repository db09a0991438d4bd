"""One name, one type: no two types of the project share a name."""

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"

# Roles of sibling transports, each in its own namespace.
FOLDERS = [path for path in (NATIVE / "transport").iterdir() if path.is_dir()]
SIBLINGS = {"stream", *(f"transport/{path.name}" for path in FOLDERS)}
SIBLING_ROLES = {
    *("Chunk", "Connector", "Frame", "FrameKind", "Hello", "Inbox", "Listener"),
    *("Outbox", "SentMessage"),
}
# Fixtures of single test programs and files, which no other file can see.
FIXTURES = {"BenchSettings", "Pair", "Rank", "World"}
# These files spell the types of MPI and of NCCL as their headers do.
FOREIGN = re.compile(r"^(mpi/(abi_\w+|functions)|nccl_net/abi)\.h$")

COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
ACCESS = re.compile(r"^(?:(?:public|private|protected)\s*:\s*)+")
NAMESPACE = re.compile(r"(?:^|\s)namespace\s*([\w:]*)$")
ATTRIBUTE = r"(?:(?:alignas|[A-Z_]{6,})(?:\([^)]*\))?\s+)*"
TYPE = re.compile(
    rf"^(?:template\s*<.*>\s*)?(class|struct|union|enum(?: class)?)\s+{ATTRIBUTE}"
    r"(\w+)(\s*<[^{]*>)?(?:\s+final)?\s*(?::[^:].*)?$"
)
ALIAS = re.compile(r"^(?:template\s*<.*>\s*)?using\s+(\w+)\s*=\s*(.+)$")


class Type(NamedTuple):
    """One definition of a type."""

    file: str
    scopes: tuple[str, ...]  # namespaces and classes around it; "" is anonymous
    name: str
    is_nested: bool  # in a class
    target: str  # what it is another name of

    @property
    def folder(self):
        parts = self.file.split("/")
        return "/".join(parts[: 2 if parts[0] == "transport" else 1])

    @property
    def is_private_to_a_test(self):
        in_tests = self.folder in ("tests", "fuzz")
        return in_tests and (self.file.endswith("_bench.cpp") or "" in self.scopes)

    def __str__(self):
        return f"{self.file}: {'::'.join(filter(None, (*self.scopes, self.name)))}"


def types_in(file, text):
    """Yield the types that ``text`` defines outside of functions."""
    text = COMMENT_OR_TEXT.sub(" ", text)
    scopes: list[tuple[str, str]] = []
    begin = 0
    for mark in re.finditer(r"[{};]", text):
        statement = ACCESS.sub("", " ".join(text[begin : mark.start()].split()))
        begin = mark.end()
        named = all(kind in ("namespace", "class") for kind, _ in scopes)
        is_nested = any(kind == "class" for kind, _ in scopes)
        around = tuple(name for _, name in scopes)
        if mark.group() == "}":
            del scopes[-1:]
        elif mark.group() == ";":
            if named and (alias := ALIAS.match(statement)):
                target = alias[2].split("::")[-1] if "<" not in alias[2] else alias[2]
                yield Type(file, around, alias[1], is_nested, target)
        elif named and (space := NAMESPACE.search(statement)):
            scopes.append(("namespace", space[1]))
        elif named and (defined := TYPE.match(statement)):
            if not defined[3]:  # a specialization is another form of the same type
                yield Type(file, around, defined[2], is_nested, "")
            kind = "enum" if defined[1].startswith("enum") else "class"
            scopes.append((kind, defined[2]))
        else:
            scopes.append(("function", ""))


def native_types():
    files = sorted([*NATIVE.rglob("*.h"), *NATIVE.rglob("*.cpp")])
    return [
        found
        for path in files
        if not FOREIGN.match(file := str(path.relative_to(NATIVE)))
        for found in types_in(file, path.read_text())
    ]


def collisions(types):
    """Return the definitions of each name that stands for several types.

    A type in a class is written with the name of the class (``Operation::State``), so
    two such types may share a name. They must not share it with a type outside of
    classes. Aliases with the same target are one type, and ``using State =
    Operation::State`` adds none.
    """
    by_name = defaultdict(list)
    for found in types:
        if found.target != found.name:
            by_name[found.name].append(found)
    return {
        name: same
        for name, same in by_name.items()
        if not all(one.is_nested for one in same)
        and len({one.target or (one.file, one.scopes) for one in same}) > 1
    }


def is_allowed(name, same):
    if name in FIXTURES:
        # At most one of them is visible to other files.
        return sum(not one.is_private_to_a_test for one in same) <= 1
    if name in SIBLING_ROLES:
        folders = [one.folder for one in same]
        return set(folders) <= SIBLINGS and len(set(folders)) == len(folders)
    return False


def test_no_two_native_types_share_a_name():
    wrong = [
        f"{name}:\n  " + "\n  ".join(map(str, same))
        for name, same in sorted(collisions(native_types()).items())
        if not is_allowed(name, same)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_lists_hold_no_other_names():
    assert {*FIXTURES, *SIBLING_ROLES} <= collisions(native_types()).keys()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("namespace a { struct B { enum class C { kD }; using E = int; }; }", "B C E"),
        ("class alignas(64) A final : public B<C> {};", "A"),
        ("class SCOPED_CAPABILITY A {}; class CAPABILITY(x) B {};", "A B"),
        ("template <typename T> struct A { T x{1}; }; struct A<int> {};", "A"),
        ("struct A; enum B : int; struct A f(struct B* x) { struct C {}; }", ""),
        ('// struct A {};\nconst char* x = "struct B {";\n#define C struct D {};', ""),
    ],
)
def test_types_are_found(text, names):
    assert [found.name for found in types_in("x.h", text)] == names.split()


def test_collisions_are_found():
    def found(*texts):
        types = (types_in(f"{i}.h", text) for i, text in enumerate(texts))
        return set(collisions([one for each in types for one in each]))

    assert found("struct A {};", "namespace b { struct A {}; }") == {"A"}
    assert found("struct A {};", "struct B { struct A {}; };") == {"A"}
    assert found("struct B { struct A {}; };", "struct C { struct A {}; };") == set()
    assert found("namespace { class A {}; }", "namespace { class A {}; }") == {"A"}
    assert found("using A = int;", "namespace b { using A = long; }") == {"A"}
    assert found("using A = int;", "struct B { using A = int; };") == set()
    assert found("struct B { using A = int; };", "using A = B::A;") == set()


# Public Python classes that may share a name, with the reason.
SAME_PYTHON_NAMES = {
    "ProcessSet": "Horovod's is made before init and is then added to a world",
}


def public_classes():
    """Return class name to files, for the public classes of both packages."""
    files = defaultdict(list)
    for package in ("bluecomm", "bfrun"):
        for suffix in ("*.py", "*.pyi"):
            for path in sorted((ROOT / package).rglob(suffix)):
                for node in ast.parse(path.read_text()).body:
                    if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                        files[node.name].append(str(path.relative_to(ROOT)))
    return files


def test_no_two_public_python_classes_share_a_name():
    found = {name: files for name, files in public_classes().items() if len(files) > 1}
    wrong = [
        f"{name}: {', '.join(files)}"
        for name, files in found.items()
        if name not in SAME_PYTHON_NAMES
    ]
    assert not wrong, "\n".join(wrong)
    assert SAME_PYTHON_NAMES.keys() <= found.keys(), "an exception is not needed"
