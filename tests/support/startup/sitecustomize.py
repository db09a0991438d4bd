"""Makes imports of torch and its compiler cheaper in the processes of the tests.

Python imports this file when it starts, because tests/conftest.py puts its folder on
``PYTHONPATH``. Most processes of the tests are ranks that live for a few seconds, and a
third of what each of them costs is the search for garbage among the objects of torch,
during the import and at the exit. These objects live as long as the process. So nothing
is collected during the import, and later collections skip what it has made. The first
optimizer of a process imports torch's compiler; during that, nothing is collected
either.

Processes without torch, such as those of bfrun, and all objects that a program makes
itself are collected as usual.
"""

import gc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAMES = {"torch", "torch._dynamo"}


class _Finder:
    """Finds these modules as if it did not exist, and pauses the collector."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return how to import one of them, and nothing for other modules."""
        if name not in _NAMES:
            return None
        _NAMES.remove(name)  # so this finder does not find itself
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None and gc.isenabled():
            execute = spec.loader.exec_module

            def execute_without_collections(module: ModuleType) -> None:
                gc.disable()
                try:
                    execute(module)
                finally:
                    if name == "torch":  # a program has no objects of its own yet
                        gc.freeze()
                    gc.enable()

            spec.loader.exec_module = execute_without_collections
        return spec


sys.meta_path.insert(0, _Finder())
