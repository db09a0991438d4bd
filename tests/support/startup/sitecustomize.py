"""Makes imports of torch and its compiler cheaper in the processes of the tests.

Python imports this file when it starts, because tests/conftest.py puts its folder on
``PYTHONPATH``. Most processes of the tests are ranks that live for a few seconds, and
imports are most of what each of them costs.

A third of the import of torch, and of the exit after it, is the search for garbage
among the objects of torch, which live as long as the process. So nothing is collected
during the import, and later collections skip what it has made. Processes without torch,
such as those of bfrun, and all objects that a program makes itself are collected as
usual.

The first optimizer of a process imports torch's compiler, which costs as much as torch
itself, only to say which functions must not be compiled. So the compiler is imported
when a program asks it for anything else, such as ``torch.compile``.
"""

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

TORCH, COMPILER = "torch", "torch._dynamo"


class _Finder:
    """Finds torch and its compiler, and returns how to import them."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return how to import one of them, and nothing for other modules."""
        if name in (TORCH, COMPILER):
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                make = _TorchLoader if name == TORCH else _CompilerLoader
                spec.loader = make(spec.loader)
            return spec
        if name.startswith(f"{COMPILER}."):
            compiler = sys.modules[COMPILER]
            if isinstance(compiler, _Compiler):
                # Another thread that imports it now may wait for this module.
                compiler.import_now(wait=False)
                # Python would import it once more if it were there.
                module = sys.modules.pop(name, None)
                if module is not None:
                    return spec_from_loader(name, _PresentLoader(module))
        return None


class _TorchLoader(Loader):
    """Imports torch without collections, and freezes its objects."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """Import torch."""
        _set_loader(module, self._loader)
        with _paused_collector() as was_enabled:
            self._loader.exec_module(module)
            if was_enabled:  # a program has no objects of its own yet
                gc.freeze()


class _CompilerLoader(Loader):
    """Makes a stand-in for the compiler, which imports it later."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the stand-in."""
        return _Compiler(spec.name, self._loader)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the compiler for later."""


class _PresentLoader(Loader):
    """Returns a module that was imported with the compiler, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give it back its own spec."""
        vars(module)["__spec__"] = self._spec  # some refuse assignments


class _Compiler(ModuleType):
    """The compiler, imported in place as soon as more of it is used than optimizers do.

    The functions that optimizers use do nothing, as in a program that compiles nothing.
    """

    def __init__(self, name: str, loader: Loader) -> None:
        super().__init__(name)
        self._loader = loader
        self._lock = threading.RLock()
        self._importer: int | None = None
        self._uncompiled: list[Callable[..., Any]] = []

    def disable(
        self, fn: Any = None, recursive: bool = True, **options: Any
    ) -> Callable[..., Any]:
        """Return ``fn`` as it is, if ``torch._compile._disable_dynamo`` asks."""
        with self._lock:
            if type(self) is _Compiler:
                if options == {"wrapping": False}:
                    self._uncompiled.append(fn)
                    return fn
                self.import_now()
        return self.disable(fn, recursive, **options)

    def graph_break(self, msg: str = "") -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        is_special = name.startswith("__") and name != "__all__"
        if is_special or self._importer == threading.get_ident():
            raise AttributeError(f"module {COMPILER!r} has no attribute {name!r}")
        self.import_now()
        return getattr(self, name)

    def import_now(self, wait: bool = True) -> None:
        """Import the compiler, unless this thread is about to.

        Args:
            wait: Whether to wait for another thread that imports it.
        """
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if type(self) is _Compiler and self._importer is None:
                self._import()
        finally:
            self._lock.release()

    def _import(self) -> None:
        self._importer = threading.get_ident()
        try:
            with _paused_collector():
                self._loader.exec_module(self)
        finally:
            self._importer = None
        for fn in self._uncompiled:
            # torch asks again, and the compiler answers.
            vars(fn).pop("__dynamo_disable", None)
        _set_loader(self, self._loader)
        self.__class__ = ModuleType  # type: ignore[assignment]


def _set_loader(module: ModuleType, loader: Loader) -> None:
    """Let a module have its usual loader, which knows its files."""
    module.__loader__ = loader
    if module.__spec__ is not None:
        module.__spec__.loader = loader


@contextlib.contextmanager
def _paused_collector() -> Iterator[bool]:
    """Collect no garbage, and yield whether it is collected otherwise."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield was_enabled
    finally:
        if was_enabled:
            gc.enable()


sys.meta_path.insert(0, _Finder())
