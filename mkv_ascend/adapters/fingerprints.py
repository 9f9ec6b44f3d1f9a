# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of foreign source: of its syntax tree, so that comments and formatting don't count.

Nothing foreign is imported: names are looked up in the files of an installed or unpacked host.
A name is written ``module:qualified.name``. What an adapter replaces or counts on is recorded with
its fingerprint for each supported version, in the adapter's ``fingerprints.json``
(``python tools/port_report.py --record``).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIGITS = 16
"""Hexadecimal digits of a fingerprint."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
DYNAMIC = "__getattr__"
"""The function of a module that serves names without a definition (``vllm.envs``)."""
LINKS = 12
"""Largest number of re-exports that are followed."""


@dataclass(frozen=True)
class Definition:
    """Where a name is defined.

    Attributes:
        module: the module that defines it, which may be another than the one asked for.
        node: its syntax tree; None for a module.
    """

    module: str
    node: ast.AST | None


class HostSource:
    """Sources of packages, by the folder in which each package lies."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = dict(folders)

    @functools.cached_property
    def _trees(self) -> dict[Path, ast.Module]:
        return {}

    def file_of(self, module: str) -> Path | None:
        """The source file of a module; None where there is none."""
        folder = self.folders.get(module.partition(".")[0])
        if folder is None:
            return None
        path = folder.joinpath(*module.split("."))
        candidates = (path / "__init__.py", path.with_name(f"{path.name}.py"))
        return next((file for file in candidates if file.is_file()), None)

    def tree_of(self, module: str) -> ast.Module | None:
        """The syntax tree of a module; None where there is none."""
        path = self.file_of(module)
        if path is None:
            return None
        if path not in self._trees:
            self._trees[path] = ast.parse(path.read_text(encoding="utf-8"))
        return self._trees[path]

    def find(self, name: str, links: int = LINKS) -> Definition | None:
        """The definition of ``module:qualified.name``; re-exports and base classes are followed."""
        module, _, qualified = name.partition(":")
        tree = self.tree_of(module)
        if tree is None:
            return None
        if not qualified:
            return Definition(module, None)
        first, _, rest = qualified.partition(".")
        found = self._in_module(module, tree, first, links)
        while found is not None and rest:
            first, _, rest = rest.partition(".")
            found = self._in_class(found, first, links)
        return found

    def bases_of(self, definition: Definition, links: int = LINKS) -> Iterator[Definition]:
        """The classes that a class names as its bases."""
        if links and isinstance(definition.node, ast.ClassDef):
            for base in definition.node.bases:
                found = self.find(f"{definition.module}:{ast.unparse(base)}", links - 1)
                if found is not None:
                    yield found

    def _in_module(self, module: str, tree: ast.Module, name: str, links: int) -> Definition | None:
        found: Definition | None = None
        for node in _statements(tree.body):
            if _defines(node, name):
                found = Definition(module, node)
            elif links and isinstance(node, ast.Import | ast.ImportFrom):
                found = self._imported(module, node, name, links) or found
        if found is None and self.file_of(f"{module}.{name}"):
            return Definition(f"{module}.{name}", None)
        if found is None and name != DYNAMIC:
            return self._in_module(module, tree, DYNAMIC, 0)
        return found

    def _imported(
        self, module: str, node: ast.Import | ast.ImportFrom, name: str, links: int
    ) -> Definition | None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                if alias.asname == name or alias.name == name:
                    return self.find(alias.name + ":", links - 1)
                if alias.asname is None and alias.name.partition(".")[0] == name:
                    return self.find(name + ":", links - 1)
                continue
            source = _absolute(module, node, self.file_of(module))
            if alias.name == "*":
                found = self.find(f"{source}:{name}", links - 1)
                if found is not None:
                    return found
            elif (alias.asname or alias.name) == name:
                return self.find(f"{source}:{alias.name}", links - 1)
        return None

    def _in_class(self, owner: Definition, name: str, links: int) -> Definition | None:
        if owner.node is None:
            return self.find(f"{owner.module}:{name}", links - 1) if links else None
        if not isinstance(owner.node, ast.ClassDef):
            return None
        found = None
        for node in _statements(owner.node.body):
            if _defines(node, name):
                found = Definition(owner.module, node)
        if found is None:
            bases = self.bases_of(owner, links)
            found = next(filter(None, (self._in_class(b, name, links - 1) for b in bases)), None)
        return found


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those under conditions included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _defines(node: ast.stmt, name: str) -> bool:
    return name in _assigned(node) or (isinstance(node, DEFINITIONS) and node.name == name)


def _assigned(node: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {
        inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)
    }


def _absolute(module: str, node: ast.ImportFrom, file: Path | None) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    if file is not None and file.name == "__init__.py":
        parts.append("")
    return ".".join([*parts[: -node.level], *([node.module] if node.module else [])])


def fingerprint(node: ast.AST | None) -> str:
    """The fingerprint of a syntax tree without documentation; "module" for None.

    It is equal for all versions of Python that parse the source: fields without a value differ
    between versions, so they are left out.
    """
    if node is None:
        return "module"
    return hashlib.sha256(_dump(node).encode()).hexdigest()[:DIGITS]


def print_of(name: str, use: str, definition: Definition) -> str:
    """The fingerprint that counts for a name.

    What is replaced of a module that imported it is the module's global: where it comes from.
    """
    module, _, qualified = name.partition(":")
    if use == "replaced" and "." not in qualified and definition.module != module:
        return f"from {definition.module}"
    return fingerprint(definition.node)


def _dump(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = []
    for name, inner in ast.iter_fields(value):
        if name == "body" and isinstance(inner, list):
            inner = [node for node in inner if not _is_documentation(node)]
        if inner is None or inner == [] or name in ("kind", "type_comment"):
            continue
        fields.append(f"{name}={_dump(inner)}")
    return f"{type(value).__name__}({','.join(fields)})"


def _is_documentation(node: ast.AST) -> bool:
    """Whether a statement is a bare string, which nothing uses."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclass(frozen=True)
class Drift:
    """A recorded name whose source is no longer the recorded one.

    Attributes:
        name: ``module:qualified.name``.
        patches: the patches that replace it or count on it.
        found: its fingerprint now; None when it is gone.
    """

    name: str
    patches: tuple[str, ...]
    found: str | None


def drifts(recorded: Mapping[str, Any], source: HostSource) -> list[Drift]:
    """The differences from the record of one version of one distribution.

    Args:
        recorded: ``files``: module -> digest of its file; ``names``: name -> ``print``, its
            fingerprint, ``module`` that defines it where its name has another, ``use`` (replaced
            or read; imported where only ``tools/port_report.py`` looks) and the ``patches``.

    A file is not parsed if its bytes are the recorded ones.
    """
    changed = {
        module for module, digest in recorded["files"].items()
        if digest_of(source.file_of(module)) != digest
    }  # fmt: skip
    found = []
    for name, entry in recorded["names"].items():
        asked = name.partition(":")[0]
        if not entry.get("patches") or not changed & {entry.get("module", asked), asked}:
            continue
        definition = source.find(name)
        now = None if definition is None else print_of(name, entry["use"], definition)
        if now != entry["print"]:
            found.append(Drift(name, tuple(entry["patches"]), now))
    return found


PARTS = ("files", "names")
"""Of a record."""


def digest_of(path: Path | None) -> str | None:
    """The digest of a file's bytes; None without a file."""
    if path is None:
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """A ``fingerprints.json``: distribution -> version -> record (see ``drifts``).

    Versions behind the first one have there what is otherwise than in the first.
    """
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    for versions in found.values():
        first = next(iter(versions.values()))
        for recorded in versions.values():
            for part in PARTS:
                recorded[part] = {**first[part], **recorded[part]}
    return found
