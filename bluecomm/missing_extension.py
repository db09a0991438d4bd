"""The error for a compiled module that does not exist in this copy of the package."""

import sys
from pathlib import Path

__all__ = ["missing_extension"]


def missing_extension(module: str, stand_in: str) -> ImportError:
    """Return an error that says why a compiled module is missing, and what to do.

    Python imports a compiled module in preference to a source file of the same name.
    The source file thus runs only where nothing has been compiled, and raises this
    error.

    Args:
        module: Full name of the compiled module, such as ``bluecomm._native``.
        stand_in: File of the source module that Python imported instead.
    """
    package = Path(stand_in).resolve().parents[module.count(".") - 1]
    installed = _installed_copies(module, package)
    if not installed:
        return ImportError(
            f"{module} has not been compiled in {package}. Run `make build` there, "
            "or `pip install .`"
        )
    return ImportError(
        f"Python imported bluecomm from {package}, where {module} has not been "
        f"compiled, instead of the installed copy in {installed[0]}. A program finds "
        "the source tree first if it starts in that folder (`python -m`) or lies in "
        "it. Start it from another folder, or run `make build` to use the source tree"
    )


def _installed_copies(module: str, package: Path) -> list[Path]:
    """Return the other copies of the package on the path that have the module."""
    top, *inner, name = module.split(".")
    found = []
    for entry in sys.path:
        folder = Path(entry or ".").resolve() / top
        if folder != package and any(folder.joinpath(*inner).glob(f"{name}.*.so")):
            found.append(folder)
    return found
