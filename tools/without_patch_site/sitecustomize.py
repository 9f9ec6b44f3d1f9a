# SPDX-License-Identifier: Apache-2.0
"""Lets a process run without one replacement of foreign code, for ``tools/without_patch.py``.

Python imports this module at its start, because that tool puts this folder on ``PYTHONPATH``. Our
modules are changed right after they are executed; nothing in the product asks for any of this.
Which record is left out is asked at each call: a process that was forked leaves out another one
than its parent did, whose modules it has. What the parent did at a call stays, though: it is noted
in ``before``, and a process that is to do without it is no fork of that parent.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ["WITHOUT_PATCH_FOLDER"]) if "WITHOUT_PATCH_FOLDER" in os.environ else None
"""Holds ``name``, the record to leave out or parts of it, ``seen``, what was left out, ``before``,
what processes did that leave nothing out, and ``stubs.json``."""
Change = Callable[[Any], None]


@functools.cache
def _left_out(pid: int) -> str:
    assert FOLDER is not None
    return (FOLDER / "name").read_text(encoding="utf-8")


def leaves_out(name: str, what: str) -> bool:
    """Whether this process runs without this part of a record; then it also notes ``what``."""
    left_out = _left_out(os.getpid())
    if not left_out:
        _note("before", f"{name}::{what}")
        return False
    record, _, parts = left_out.partition("::")
    if name != record or not any(part in what for part in parts.split("|")):
        return False
    _note("seen", what)
    return True


@functools.cache
def _note(file: str, line: str) -> None:
    assert FOLDER is not None
    with (FOLDER / file).open("a", encoding="utf-8") as notes:
        notes.write(f"{line}\n")


def change_patching(module: Any) -> None:
    """``@patch``, ``@override`` and ``replaced`` of a record do nothing while it is left out."""
    initialise, override, replaced = module.Patch.__init__, module.override, module.Record.replaced

    def initialise_guarded(self: Any, record: Any) -> None:
        initialise(self, record)
        self.functions = GuardedFunctions(record.name)

    def override_guarded(record: Any) -> Any:
        check = override(record)
        return lambda function: _guarded_method(record.name, check(function))

    @contextlib.contextmanager
    def replace_others(self: Any, value: Any) -> Iterator[None]:
        with contextlib.nullcontext() if leaves_out(self.name, "value") else replaced(self, value):
            yield

    module.Patch.__init__, module.override = initialise_guarded, override_guarded
    module.Record.replaced = replace_others


class GuardedFunctions(dict[str, Any]):
    """The functions of a patch by target, as it applies them and as tests call them."""

    def __init__(self, record: str) -> None:
        self._record = record

    def __setitem__(self, target: str, function: Any) -> None:
        """Keep the function with a question before each call."""
        super().__setitem__(target, _guarded_patch(self._record, target, function))


def _guarded_patch(name: str, target: str, function: Any) -> Any:
    def patched(original: Any, *args: Any, **kwargs: Any) -> Any:
        if leaves_out(name, target):
            return original(*args, **kwargs)
        return function(original, *args, **kwargs)

    return patched


def _guarded_method(name: str, function: Any) -> Any:
    """``function``, or what it overrides in the base of its class."""
    place = function.__module__, function.__qualname__.rpartition(".")[0]

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not leaves_out(name, function.__qualname__):
            return function(self, *args, **kwargs)
        mro = (self if isinstance(self, type) else type(self)).__mro__
        owner = next(c for c in mro if (c.__module__, c.__qualname__) == place)
        return getattr(super(owner, self), function.__name__)(*args, **kwargs)

    return method


def change_derived(module: Any) -> None:
    """``derive`` leaves out members that the record alone names; methods go to their base."""
    derive = module.derive

    def derive_guarded(base: Any, label: str, members: dict[str, Any], *records: Any) -> Any:
        owner: list[Any] = []
        made = {}
        for name, member in members.items():
            (first, *others) = [r.name for r in records if name in _members(r)] or [""]
            if others or not first:
                made[name] = member
            elif inspect.isfunction(member):
                made[name] = _guarded_member(first, f"{base.__name__}.{name}", member, owner)
            elif not leaves_out(first, f"{base.__name__}.{name}"):
                made[name] = member
        owner.append(derive(base, label, made, *records))
        return owner[0]

    module.derive = derive_guarded


def _members(record: Any) -> set[str]:
    return {target.rpartition(".")[2] for target in record.targets}


def _guarded_member(record: str, what: str, member: Any, owner: list[Any]) -> Any:
    @functools.wraps(member)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if leaves_out(record, what):
            base = super(owner[0], self)
            return getattr(base, what.rpartition(".")[2])(*args, **kwargs)
        return member(self, *args, **kwargs)

    return method


def guard_function(record: str, what: str, name: str, instead: str, module: Any) -> None:
    """Let a function of ours do what the expression ``instead`` does.

    Without one it does nothing: it gives None, or as a context manager runs its block.
    """
    owner = module
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    function = inspect.getattr_static(owner, last)
    kinds = (classmethod, staticmethod, property)
    kind = type(function) if isinstance(function, kinds) else None
    function = getattr(function, "fget" if kind is property else "__func__", function)
    is_context = inspect.isgeneratorfunction(inspect.unwrap(function))

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not leaves_out(record, what):
            return function(*args, **kwargs)
        if instead:
            return eval(instead, {**vars(module), "original": function})(*args, **kwargs)
        return contextlib.nullcontext() if is_context else None

    setattr(owner, last, guarded if kind is None else kind(guarded))


class Changing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules to change as Python does, and changes them once they are executed."""

    def __init__(self, changes: dict[str, list[Change]]) -> None:
        self.changes = changes
        self.loaders: dict[str, Any] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.changes:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            self.loaders[name], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.loaders[spec.name].create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.loaders[module.__name__].exec_module(module)
        for change in self.changes[module.__name__]:
            change(module)


if FOLDER is not None:
    wanted: dict[str, list[Change]] = {
        "mkv_ascend.adapters.patching": [change_patching],
        "mkv_ascend.adapters.common.attention.derived": [change_derived],
    }
    for record_name, stubs in json.loads((FOLDER / "stubs.json").read_text()).items():
        for stub, what in stubs.items():
            place, _, instead = stub.partition("=")
            module_name, _, function_name = place.partition(":")
            change = functools.partial(guard_function, record_name, what, function_name, instead)
            wanted.setdefault(module_name, []).append(change)
    sys.meta_path.insert(0, Changing(wanted))
