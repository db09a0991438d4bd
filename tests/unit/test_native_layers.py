"""The layers of the native code: includes point downward, and to no framework."""

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# The layers that each layer may include, besides itself.
BELOW = {
    "bindings": {
        *("engine", "window", "p2p", "request", "transport", "device", "mpi", "trace"),
        "common",
    },
    # An extension of its own: nothing of the product includes it.
    "bench": {"kernels", "common"},
    "engine": {
        *("window", "p2p", "request", "transport", "device", "kernels", "trace"),
        "common",
    },
    "window": {"request", "transport", "kernels", "trace", "common"},
    "p2p": {"request", "transport", "trace", "common"},
    "request": {"transport", "trace", "common"},
    "transport": {"stream", "mpi", "common"},
    "device": {"kernels", "trace", "common"},
    "nccl_net": {"stream", "common"},
    "stream": {"common"},
    "mpi": {"common"},
    "kernels": {"common"},
    "trace": {"common"},
    "common": set(),
}
# A transport includes nothing of another one.
TRANSPORTS = {path.name for path in (NATIVE / "transport").iterdir() if path.is_dir()}
FILES = sorted(
    path
    for layer in BELOW
    for suffix in ("*.h", "*.cpp")
    for path in (NATIVE / layer).rglob(suffix)
)


def includes_of(path):
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)', path.read_text(), re.MULTILINE)


def test_each_folder_is_a_layer():
    folders = {path.name for path in NATIVE.iterdir() if any(path.rglob("*.cpp"))}
    assert folders == {*BELOW, "tests", "fuzz"}


@pytest.mark.parametrize("layer", BELOW)
def test_includes_point_downward(layer):
    known = {*BELOW, "tests", "fuzz"}
    files = [path for path in FILES if path.relative_to(NATIVE).parts[0] == layer]
    wrong = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for path in files
        for name in includes_of(path)
        if (top := name.split("/")[0]) in known and top not in {layer, *BELOW[layer]}
    ]
    assert files
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("transport", sorted(TRANSPORTS))
def test_transports_have_the_same_files(transport):
    """A reader who knows one transport finds the same concepts in the others."""
    folders = [NATIVE / "transport" / transport]
    if transport == "tcp":
        folders.append(NATIVE / "stream")  # implements its protocol
    stems = {path.stem for folder in folders for path in folder.iterdir()}
    assert stems >= {"options", "transport", "channel", "outbox", "inbox", "wire"}


@pytest.mark.parametrize("transport", sorted(TRANSPORTS))
def test_transports_do_not_include_each_other(transport):
    others = tuple(f"transport/{name}/" for name in TRANSPORTS - {transport})
    folder = NATIVE / "transport" / transport
    wrong = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for path in FILES
        if folder in path.parents
        for name in includes_of(path)
        if name.startswith(others)
    ]
    assert not wrong, "\n".join(wrong)


def test_python_is_included_in_bindings_only_and_no_framework():
    framework = re.compile(r"^(torch|ATen|c10|cuda|nccl)\b|^(cuda|nccl|mpi)\w*\.h$")
    python = re.compile(r"^(Python\.h|pybind11/)")
    with_python = [
        *(path for path in FILES if NATIVE / "bindings" in path.parents),
        NATIVE / "bench" / "raw_memory_py.cpp",
    ]
    wrong = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for path in FILES
        for name in includes_of(path)
        if framework.match(name) or (python.match(name) and path not in with_python)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_environment_is_read_by_the_plugin_only():
    """``bluecomm.config`` passes settings as values, except to the NCCL plugin."""
    readers = {
        str(path.relative_to(NATIVE))
        for path in FILES
        if re.search(r"\b(?:secure_)?getenv\b|\benviron\b", path.read_text())
    }
    assert readers == {"nccl_net/plugin.cpp", "nccl_net/settings.h"}
