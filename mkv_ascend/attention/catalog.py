# SPDX-License-Identifier: Apache-2.0
"""The catalog of attention backends: which there are, and what each can serve.

A backend is one frozen ``BackendEntry`` and one ``register()`` call. Those of vllm-ascend 0.23.0
are in ``ascend_backends.py``; another package may register its own before vLLM starts. Nothing here
imports torch, vLLM or a backend: classes are named by path and dtypes by string, so that a choice
can be explained on any machine.
"""

from __future__ import annotations

import difflib

from mkv_ascend.attention.ascend_backends import ASCEND_BACKENDS
from mkv_ascend.attention.entry import BackendEntry
from mkv_ascend.attention.request import module_is_installed
from mkv_ascend.layout.kind import Kind


class CatalogError(ValueError):
    """A backend was asked for by a name that no entry has."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        """The nearest name as a question, or nothing."""


_ENTRIES: dict[str, BackendEntry] = {}
_ALIASES: dict[str, str] = {}


def register(entry: BackendEntry) -> BackendEntry:
    """Add one backend; ValueError when a name or alias is taken, or a field is impossible."""
    if ":" not in entry.class_path:
        raise ValueError(f"{entry.name}: class_path is {entry.class_path!r}; write module:Class")
    if not entry.kinds or not entry.generations or not entry.kernel_block_sizes:
        raise ValueError(
            f"{entry.name}: kinds, generations and kernel_block_sizes may not be empty"
        )
    names = {name.lower() for name in (entry.name, *entry.aliases, *entry.vllm_names)}
    taken = sorted(names & _ALIASES.keys())
    if taken:
        owners = ", ".join(f"{name} (of {_ALIASES[name]})" for name in taken)
        raise ValueError(f"{entry.name}: already registered: {owners}; choose other names")
    _ENTRIES[entry.name] = entry
    for name in names:
        _ALIASES[name] = entry.name
    return entry


def entries() -> tuple[BackendEntry, ...]:
    """All backends, best rank first, then in the order of registration."""
    return tuple(sorted(_ENTRIES.values(), key=lambda entry: entry.rank))


def installed_modules() -> frozenset[str]:
    """What backends need beyond vllm-ascend, as far as it can be imported here."""
    needed = {
        name
        for entry in entries()
        for name in (*entry.required_modules, *(entry.batch_invariant_modules or ()))
    }
    return frozenset(name for name in needed if module_is_installed(name))


def entries_for(kind: Kind) -> tuple[BackendEntry, ...]:
    """The backends that serve layers of ``kind``, best rank first."""
    return tuple(entry for entry in entries() if kind in entry.kinds)


def find(name_or_alias: str) -> BackendEntry:
    """The entry of this name or alias, without regard to case; CatalogError says what exists."""
    name = _ALIASES.get(name_or_alias.lower())
    if name is not None:
        return _ENTRIES[name]
    near = difflib.get_close_matches(name_or_alias.lower(), _ALIASES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else ""
    existing = ", ".join(entry.name for entry in entries())
    raise CatalogError(
        f"no attention backend is called {name_or_alias!r}; {f'{hint} ' if hint else ''}"
        f"existing: {existing}",
        hint,
    )


def find_class(class_path: str) -> BackendEntry | None:
    """The entry of a backend class ``module:Class``, or None."""
    return next((entry for entry in entries() if entry.class_path == class_path), None)


for _entry in ASCEND_BACKENDS:
    register(_entry)
