# SPDX-License-Identifier: Apache-2.0
"""Run a function right after a named module was imported, whoever imports it and whenever.

The emulator changes modules of other packages (Triton's interpreter, vLLM's Triton switch). To
import them early just to change them would slow down every process and change the import order that
vLLM relies on, so the change waits for the module's own import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

ModuleChange = Callable[[ModuleType], None]


class _ChangingLoader(importlib.abc.Loader):
    """Loads a module with its own loader, then applies the changes."""

    def __init__(self, loader: importlib.abc.Loader, changes: list[ModuleChange]) -> None:
        self._loader = loader
        self._changes = changes

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if its own loader had loaded it: inspect and importlib.resources
        # ask the loader for source and data.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for change in self._changes:
            change(module)


class _AfterImportFinder(importlib.abc.MetaPathFinder):
    """Wraps the loader of the modules that have changes; knows nothing of any other module."""

    def __init__(self) -> None:
        self.changes: dict[str, list[ModuleChange]] = {}
        self._being_found: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.changes or fullname in self._being_found:
            return None
        self._being_found.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._being_found.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _ChangingLoader(spec.loader, self.changes[fullname])
        return spec


_FINDER = _AfterImportFinder()


def after_import(module_name: str, change: ModuleChange) -> None:
    """Call ``change(module)`` once: now if the module is imported already, else after its import.

    An exception of ``change`` fails the import: a half-changed process must not go on.
    """
    module = sys.modules.get(module_name)
    if module is not None:
        change(module)
        return
    _FINDER.changes.setdefault(module_name, []).append(change)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
