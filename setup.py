"""Builds the native extension; everything else is in setup.cfg.

Variables: BUILD_BLUECOMM_WERROR=1 makes compiler warnings errors, BUILD_BLUECOMM_JOBS
limits the parallel compilers (default 2). Names that begin with BLUECOMM_ are those of
settings at run time, where an unknown one is an error.
"""

import os
import sys
import sysconfig
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

if not sys.platform.startswith("linux"):
    sys.exit(
        f"bluecomm runs on Linux only (this is {sys.platform}): it builds on memfd, "
        "epoll and futexes. On another system, use a Linux container."
    )

NOT_IN_EXTENSION = {"tests", "fuzz"}


def native_sources() -> list[str]:
    """Return every native/**/*.cpp of the library and of the bindings."""
    return sorted(
        str(path)
        for path in Path("native").rglob("*.cpp")
        if path.parts[1] not in NOT_IN_EXTENSION
    )


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


extension = Pybind11Extension(
    "bluecomm._native",
    native_sources(),
    cxx_std=20,
    include_dirs=["native"],
    depends=sorted(str(path) for path in Path("native").rglob("*.h")),
    # No contraction to fused multiply-add: every rank must round alike.
    extra_compile_args=[
        "-O3",
        "-ffp-contract=off",
        "-fvisibility=hidden",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-MMD",
    ]
    + (["-Werror"] if os.environ.get("BUILD_BLUECOMM_WERROR") == "1" else []),
    extra_link_args=["-pthread"],
)

ParallelCompile(
    "BUILD_BLUECOMM_JOBS", default=2, needs_recompile=needs_recompile
).install()
setup(ext_modules=[extension], cmdclass={"build_ext": BuildNative})
