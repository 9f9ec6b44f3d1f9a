# SPDX-License-Identifier: Apache-2.0
"""The catalog of attention backends: which there are, and what each can serve.

A backend is one frozen ``BackendEntry`` and one ``register()`` call. Those of vllm-ascend 0.23.0
are in ``ascend_backends.py``; another package may register its own before vLLM starts. Nothing here
imports torch, vLLM or a backend: classes are named by path and dtypes by string, so that a choice
can be explained on any machine.

``python -m mkv_ascend.attention.catalog --markdown`` prints the tables of
docs/attention_backends.md.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable

from mkv_ascend.attention.ascend_backends import ASCEND_BACKENDS
from mkv_ascend.attention.entry import BackendEntry
from mkv_ascend.layout.kind import Kind

__all__ = [
    "BackendEntry",
    "CatalogError",
    "entries",
    "entries_for",
    "find",
    "find_class",
    "main",
    "markdown",
    "register",
]


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


def _words(values: Iterable[object]) -> str:
    return ", ".join(sorted(str(value) for value in values)) or "none"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _batch_invariance(entry: BackendEntry) -> str:
    if entry.batch_invariant_modules is None:
        return "no"
    needs = _words(entry.batch_invariant_modules)
    text = "yes" if needs == "none" else f"with `{needs}`"
    return text if entry.batch_invariant_sinks or not entry.sinks else f"{text}, not with sinks"


def markdown() -> str:
    """The catalog as two Markdown tables and a list of notes."""
    lines = [
        "| backend | other names | kinds | model dtypes | cache dtypes | head sizes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for entry in entries():
        aliases = (
            ", ".join(f"`{alias}`" for alias in sorted(entry.aliases | entry.vllm_names)) or "-"
        )
        lines.append(
            f"| `{entry.name}` | {aliases} | {_words(entry.kinds)} | {_words(entry.model_dtypes)} "
            f"| {_words(entry.kv_cache_dtypes)} | {entry.head_sizes} |"
        )
    lines += [
        "",
        "| backend | devices | sinks | non-causal | ACL graph | batch invariant | needs | blocks |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for entry in entries():
        blocks = ", ".join(str(size) for size in entry.kernel_block_sizes)
        lines.append(
            f"| `{entry.name}` | {_words(entry.generations)} | {_yes(entry.sinks)} "
            f"| {_yes(entry.non_causal)} | {entry.graphs} | {_batch_invariance(entry)} "
            f"| {_words(entry.required_modules)} | {blocks} |"
        )
    lines.append("")
    by_layer = ", ".join(f"`{entry.name}`" for entry in entries() if entry.chosen_by_layer)
    lines.append(f"- Named by the layer's own class, not by options: {by_layer}.")
    lines += [f"- `{entry.name}`: {note}" for entry in entries() for note in entry.notes]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Print the catalog; the command behind docs/attention_backends.md."""
    parser = argparse.ArgumentParser(prog="python -m mkv_ascend.attention.catalog")
    parser.add_argument("--markdown", action="store_true", help="as Markdown tables")
    options = parser.parse_args(arguments)
    if options.markdown:
        sys.stdout.write(markdown())
    else:
        for entry in entries():
            sys.stdout.write(f"{entry.name}: {_words(entry.kinds)} ({entry.class_path})\n")
    return 0


for _entry in ASCEND_BACKENDS:
    register(_entry)

if __name__ == "__main__":
    # Run as a script this file is the module __main__; entries that other packages registered
    # are in the imported module.
    from mkv_ascend.attention import catalog

    sys.exit(catalog.main())
