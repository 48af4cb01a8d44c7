"""Calling back when a module has been imported, without importing it.

A program that the doctor watches must not pay for what it never uses, and must not find modules
loaded that it would have loaded itself, later, in another order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

AfterImport: TypeAlias = Callable[[ModuleType], None]


class ImportHook:
    """A finder that finds what the others find, and wraps the loading of some modules.

    ``calls`` are the callbacks by the name of the module; each is called once, after it has run.
    """

    def __init__(self, calls: Mapping[str, AfterImport]) -> None:
        """Keep the callbacks."""
        self._calls = dict(calls)

    def install(self) -> None:
        """Stand in front of the other finders; modules that are there already are told at once."""
        sys.meta_path.insert(0, self)
        for name in [name for name in self._calls if name in sys.modules]:
            self._calls.pop(name)(sys.modules[name])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, its loader wrapped; None for most."""
        if name not in self._calls:
            return None
        call = self._calls.pop(name)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, call)
                return spec  # type: ignore[no-any-return]
        self._calls[name] = call  # not there now; it may be after a change of the path
        return None


class _Loader:
    """Loads as ``loader`` does, gives it back to the module, and tells."""

    def __init__(self, loader: Any, call: AfterImport) -> None:
        self._loader = loader
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module, as the loader does."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then tell."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._call(module)
