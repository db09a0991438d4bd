"""The layers of the Python packages: imports go down, never up.

A row may import itself and the rows below it, and no module may need itself, not even
for its types. A name is a module or package directly below ``bluecomm`` or ``bfrun``;
a new one fails here until it is put into a row. Some rows name packages that do not
exist yet, so that they have a layer before they are built.
"""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

BLUECOMM = [
    # The public names under the predecessors' module name.
    {"torch"},
    {"__init__", "__main__"},
    {"bench"},
    {"torch_backend", "lightning", "transformers", "data"},
    {"compat", "topology_util"},
    {"elastic"},
    {"optim"},
    # Functions of the root module that no operation calls.
    {"basics", "active_topology", "timeline"},
    {"window", "nn"},
    {"ops"},
    {"compression"},
    {"runtime"},
    {"device"},
    {"topology"},
    # Independent of the rest, for programs that do not use bluecomm.
    {"net"},
    {"nccl_net"},
    {"errors", "config", "_native", "_version"}
    | {"missing_extension", "required_package"},
]
BFRUN = [
    {"__init__", "__main__", "notebook"},
    {"cli", "arguments"},
    {"function", "start", "jobs"},
    {"preflight", "mpi"},
    {"driver"},
    {"output"},
    # The driver's plan, and the ways to start an agent.
    {"plan", "describe", "launch"},
    {"allocation"},
    # The standard library only.
    {"agent"},
    # Shared by driver and agent.
    {"silence", "task", "probe", "private_folder"},
    {"nccl_net"},
    {"env", "config", "hosts", "channel", "frames", "trace"},
    {"structure", "options", "wording", "text_table", "files", "parallel"}
    | {"addresses", "gpu_shares"},
    {"errors"},
]
LAYERS = {"bluecomm": BLUECOMM, "bfrun": BFRUN}

# Only these packages import the extension; other code uses their Python interfaces.
NATIVE_USERS = {"runtime", "ops", "window", "compression", "device"}
# Both sides share the frames of the control plane and timelines. Without an agent, a
# rank finds its addresses by the driver's code.
BFRUN_FROM_BLUECOMM = {
    *("bfrun.addresses", "bfrun.channel", "bfrun.errors"),
    *("bfrun.frames.frame", "bfrun.frames.parts"),
    *("bfrun.frames.rank_to_agent", "bfrun.frames.agent_to_rank"),
    *("bfrun.frames.rank_to_driver", "bfrun.frames.driver_to_rank"),
    *("bfrun.private_folder", "bfrun.options", "bfrun.probe", "bfrun.text_table"),
    "bfrun.wording",
    *("bfrun.trace.clock", "bfrun.trace.merge", "bfrun.trace.spool"),
}
# Sent to hosts that may have only Python.
AGENT_ROOTS = {
    *("bfrun.agent.agent", "bfrun.launch.bootstrap", "bfrun.agent.guard"),
    "bfrun.agent.relay",
}


class Import(NamedTuple):
    """One import statement: which module imports which."""

    importer: str
    imported: str
    line: int
    # "start": with the module; "types": for type checkers only; "call": in a function.
    when: str

    @property
    def at_start(self):
        return self.when == "start"

    def __str__(self):
        return f"{self.importer} (line {self.line}) imports {self.imported}"


def modules_of(package):
    """Return module name to file, for all modules of a package."""
    names = {}
    for suffix in ("py", "pyi"):
        for path in sorted((ROOT / package).rglob(f"*.{suffix}")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            names.setdefault(".".join(parts), path)
    return names


MODULES = {package: modules_of(package) for package in LAYERS}


def is_type_checking(node):
    """Return whether a node is ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_in(source, module, *, is_package=False):
    """Return all imports of a module's text, also those inside functions."""
    found = []

    def visit(node, when):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, base] if base else kept)
            # A name may be a submodule: keep the longest that is a module.
            names = [base] + [
                name
                for name in (f"{base}.{alias.name}" for alias in node.names)
                if any(name in modules for modules in MODULES.values())
            ]
            names = names[1:] if len(names) == len(node.names) + 1 else names
        else:
            names = []
        found.extend(Import(module, name, node.lineno, when) for name in names)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            when = "call"
        elif is_type_checking(node) and when == "start":
            when = "types"
        for child in ast.iter_child_nodes(node):
            visit(child, when)

    visit(ast.parse(source), "start")
    return found


IMPORTS = [
    imported
    for modules in MODULES.values()
    for module, path in modules.items()
    for imported in imports_in(
        path.read_text(), module, is_package=path.stem == "__init__"
    )
]


def unit(module):
    """Return the part of a module's name that a row lists, just below the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def within(package):
    """Return the imports between the modules of one package."""
    return [
        item
        for item in IMPORTS
        if item.importer.split(".")[0] == item.imported.split(".")[0] == package
    ]


@pytest.mark.parametrize("package", LAYERS)
def test_each_module_has_one_layer(package):
    placed = [name for row in LAYERS[package] for name in row]
    assert len(placed) == len(set(placed))
    missing = {unit(module) for module in MODULES[package]} - set(placed)
    assert not missing, f"place {sorted(missing)} in a row of {package.upper()}"


@pytest.mark.parametrize("package", LAYERS)
def test_imports_go_down(package):
    row_of = {name: i for i, row in enumerate(LAYERS[package]) for name in row}
    wrong = [
        str(item)
        for item in within(package)
        # The test above reports modules without a row.
        if {unit(item.importer), unit(item.imported)} <= row_of.keys()
        and row_of[unit(item.importer)] > row_of[unit(item.imported)]
        # Attributes of the package itself, such as its version, are below everything.
        and item.imported != package
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", LAYERS)
def test_no_module_needs_itself(package):
    needs = {module: set() for module in MODULES[package]}
    for item in within(package):
        if item.when != "call" and item.imported in needs:
            needs[item.importer].add(item.imported)
    # Remove modules without needs until none is left.
    while free := {module for module, needed in needs.items() if not needed}:
        needs = {
            module: needed - free
            for module, needed in needs.items()
            if module not in free
        }
    assert not needs, "imported in a circle: " + " -> ".join(circle_in(needs))


def circle_in(needs):
    """Return a circle, where each module needs one of the others."""
    path = [min(needs)]
    while path.count(path[-1]) == 1:
        path.append(min(needs[path[-1]]))
    return path[path.index(path[-1]) :]


def test_bfrun_needs_neither_bluecomm_nor_torch():
    wrong = [
        str(item)
        for item in IMPORTS
        if item.importer.startswith("bfrun")
        and item.imported.split(".")[0] in {"bluecomm", "torch", "numpy", "networkx"}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_module_that_torch_imports_loads_nothing_else():
    source = (ROOT / "bluecomm_autoload.py").read_text()
    at_start = [
        item.imported
        for item in imports_in(source, "bluecomm_autoload")
        if item.when != "call"
    ]
    assert at_start == ["__future__", "logging", "typing"]


def test_bluecomm_takes_only_frames_and_timelines_from_bfrun():
    wrong = [
        str(item)
        for item in IMPORTS
        if item.importer.startswith("bluecomm")
        and item.imported.split(".")[0] == "bfrun"
        and item.imported not in BFRUN_FROM_BLUECOMM
    ]
    assert not wrong, "\n".join(wrong)


def test_few_packages_import_the_extension():
    wrong = [
        str(item)
        for item in IMPORTS
        if item.imported.startswith("bluecomm._native")
        and unit(item.importer) not in NATIVE_USERS
    ]
    assert not wrong, "\n".join(wrong)


def test_the_base_does_not_import_torch():
    base = {"errors", "config", "topology"}
    wrong = [
        str(item)
        for item in IMPORTS
        if item.importer.startswith("bluecomm.")
        and unit(item.importer) in base
        and item.imported.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_bluecomm_loads_nothing_slow():
    slow = {"matplotlib", "networkx", "numba", "paramiko", "rich", "scipy", "sklearn"}
    # They need Numba, so they are as slow.
    kernels = {
        module
        for module in MODULES["bluecomm"]
        if module.startswith("bluecomm.compression.kernels.")
        and module.endswith((".jit", ".disk_cache", ".cuda_launch", "_cpu", "_cuda"))
    }
    wrong = [
        str(item)
        for item in IMPORTS
        if item.importer.startswith("bluecomm")
        and item.importer not in kernels
        and item.at_start
        and (item.imported.split(".")[0] in slow or item.imported in kernels)
    ]
    assert not wrong, "import these where they are used:\n" + "\n".join(wrong)


def test_the_agent_needs_the_standard_library_only():
    reached = set()
    waiting = AGENT_ROOTS & set(MODULES["bfrun"])
    foreign = []
    while waiting:
        module = waiting.pop()
        reached.add(module)
        for item in IMPORTS:
            if item.importer == module:
                if item.imported in MODULES["bfrun"]:
                    waiting |= {item.imported} - reached
                elif item.imported.split(".")[0] not in sys.stdlib_module_names:
                    foreign.append(str(item))
    assert reached
    assert not foreign, "\n".join(foreign)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.nn", [("torch.nn", "start")]),
        ("from bluecomm import errors", [("bluecomm.errors", "start")]),
        ("from bluecomm.errors import X", [("bluecomm.errors", "start")]),
        ("from .errors import X", [("bluecomm.errors", "start")]),
        ("from . import errors", [("bluecomm.errors", "start")]),
        ("def f():\n    import os", [("os", "call")]),
        ("if TYPE_CHECKING:\n    import os", [("os", "types")]),
        ("def f():\n    if TYPE_CHECKING:\n        import os", [("os", "call")]),
        ("try:\n    import os\nexcept ImportError:\n    pass", [("os", "start")]),
    ],
)
def test_the_walk_finds_imports(source, expected):
    found = imports_in(source, "bluecomm.config")
    assert [(item.imported, item.when) for item in found] == expected
