"""Runs a function right after a module has been imported, without importing it.

A script that never imports PyTorch pays one failed dictionary look-up per import.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

OnImport = Callable[[ModuleType], None]
"""Gets the module that has just been executed. Must not raise."""


class ImportWatcher(importlib.abc.MetaPathFinder):
    """A finder that finds what the others find, and wraps the loader of the watched modules."""

    def __init__(self, watched: Mapping[str, OnImport]) -> None:
        self._watched = dict(watched)
        self._looking = False

    def add(self, watched: Mapping[str, OnImport]) -> None:
        """Watch these too."""
        self._watched.update(watched)

    def install(self) -> None:
        """Start watching; modules that are loaded already are handed over at once."""
        if self in sys.meta_path:
            return
        sys.meta_path.insert(0, self)
        for name, on_import in list(self._watched.items()):
            module = sys.modules.get(name)
            if module is not None:
                on_import(module)

    def remove(self) -> None:
        """Stop watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        on_import = self._watched.get(fullname)
        if on_import is None or self._looking:  # Another watcher may ask this one in turn.
            return None
        self._looking = True
        try:
            return self._find(fullname, path, target, on_import)
        finally:
            self._looking = False

    def _find(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None,
        on_import: OnImport,
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is None:
                continue
            # Only a loader of the usual kind can be wrapped; any other is left as it is.
            if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                spec.loader = _TellingLoader(spec.loader, on_import)
            return spec
        return None


class _TellingLoader(importlib.abc.Loader):
    """Stands in for a loader until the module is executed, then steps out of the way.

    Code that looks at the module afterwards (inspect, torch.package) sees the loader it would have
    seen without Skep.
    """

    def __init__(self, loader: importlib.abc.Loader, on_import: OnImport) -> None:
        self._loader = loader
        self._on_import = on_import

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._on_import(module)
