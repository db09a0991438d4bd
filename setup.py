"""Builds the native libraries; everything else is in setup.cfg.

Variables: BUILD_BLUECOMM_WERROR=1 makes compiler warnings errors, BUILD_BLUECOMM_JOBS
limits the parallel compilers (default 2). Names that begin with BLUECOMM_ are those of
settings at run time, where an unknown one is an error.
"""

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

if not sys.platform.startswith("linux"):
    sys.exit(
        f"bluecomm runs on Linux only (this is {sys.platform}): it builds on memfd, "
        "epoll and futexes. On another system, use a Linux container."
    )

FOLDERS = {path.name for path in Path("native").iterdir() if path.is_dir()}
IN_EXTENSION = FOLDERS - {"tests", "fuzz", "nccl_net", "bench"}
# Its loops take longest to compile, so they are better spread over the processors.
FILE_BY_FILE = {"kernels"}
# Loops over shared memory that the benchmark compares the engine with.
IN_BENCH = {"bench", "kernels", "common"}
# The network plugin for NCCL: a library that NCCL loads, not Python.
PLUGIN = "bluecomm.nccl_net.libnccl-net-bluecomm"
IN_PLUGIN = {"nccl_net", "stream", "common"}


def native_sources(folders: set[str]) -> list[str]:
    """Return every .cpp file in these folders of native/."""
    return sorted(
        str(path) for path in Path("native").rglob("*.cpp") if path.parts[1] in folders
    )


def batches_of(sources: Sequence[str]) -> list[str]:
    """Return files that include the sources of a folder each, written if they differ.

    Most of the time of a compilation goes into headers, which a folder needs once.
    """
    batches: dict[str, list[str]] = {}
    for source in sources:
        file = Path(source).relative_to("native")
        if file.parts[0] in FILE_BY_FILE:
            batches[source] = []
        else:
            batch = f"build/extension-batches/{file.parent}.cpp"
            batches.setdefault(batch, []).append(f'#include "{file}"\n')
    for batch, lines in batches.items():
        path = Path(batch)
        text = "".join(lines)
        if lines and not (path.exists() and path.read_text() == text):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return list(batches)


def announce_recompile(obj: str, source: str) -> bool:
    """Return ``needs_recompile``, and print the name of a file that does."""
    needed = needs_recompile(obj, source)
    if needed:
        print(f"compile {source}", flush=True)
    return needed


def needs_recompile(obj: str, source: str) -> bool:
    """Say whether ``source`` or a header it included is newer than ``obj``."""
    try:
        built = os.stat(obj).st_mtime
        rule = Path(obj).with_suffix(".d").read_text().replace("\\\n", " ")
        inputs = [source, *rule.split(":", 1)[1].split()]
        return any(os.stat(path).st_mtime > built for path in inputs)
    except OSError:
        return True


class BuildNative(build_ext):
    """build_ext whose objects survive, so that a second build is incremental."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = f"build/extension-{sysconfig.get_config_var('SOABI')}"

    def build_extension(self, ext: Pybind11Extension) -> None:
        # The sources themselves are what a source distribution has.
        sources, ext.sources = ext.sources, batches_of(ext.sources)
        try:
            super().build_extension(ext)
        finally:
            ext.sources = sources

    def get_ext_filename(self, ext_name: str) -> str:
        if ext_name == PLUGIN or PLUGIN.endswith(f".{ext_name}"):
            return f"{ext_name.replace('.', os.sep)}.so"
        return super().get_ext_filename(ext_name)


def make_extension(
    name: str, sources: list[str], link_args: Sequence[str] = ()
) -> Pybind11Extension:
    """Return one library; the same flags for all, so that they share objects."""
    return Pybind11Extension(
        name,
        sources,
        cxx_std=20,
        include_dirs=["native"],
        depends=sorted([*map(str, Path("native").rglob("*.h")), *sources]),
        # Line numbers are enough for stack traces; Python's own -g costs a quarter of
        # the time. No contraction to fused multiply-add: every rank must round alike.
        extra_compile_args=[
            "-O3",
            "-g1",
            "-ffp-contract=off",
            "-fvisibility=hidden",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-MMD",
        ]
        + (["-Werror"] if os.environ.get("BUILD_BLUECOMM_WERROR") == "1" else []),
        extra_link_args=["-pthread", *link_args],
    )


extension = make_extension("bluecomm._native", native_sources(IN_EXTENSION))
bench = make_extension("bluecomm.bench._raw_memory", native_sources(IN_BENCH))
# Its thread may still run when NCCL unloads it: it stays where it is.
plugin = make_extension(
    PLUGIN,
    native_sources(IN_PLUGIN),
    [
        "-Wl,-soname,libnccl-net-bluecomm.so",
        "-Wl,-z,nodelete",
        "-Wl,--version-script=native/nccl_net/exports.map",
    ],
)

ParallelCompile(
    "BUILD_BLUECOMM_JOBS", default=2, needs_recompile=announce_recompile
).install()
setup(ext_modules=[extension, bench, plugin], cmdclass={"build_ext": BuildNative})
