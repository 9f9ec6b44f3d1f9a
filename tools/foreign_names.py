# SPDX-License-Identifier: Apache-2.0
"""Foreign names in adapters, read from their sources: records of patches, imports, class paths.

Nothing of the adapter or of its host is imported, so this works on any machine.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mkv_ascend.adapters.contract import HostAdapter
from mkv_ascend.adapters.patching import Record
from patch_notes import Notes, notes

ROOT = Path(__file__).resolve().parent.parent
ADAPTERS = ROOT / "mkv_ascend" / "adapters"
CATALOG = ROOT / "mkv_ascend" / "attention"
HOSTS = ("vllm", "vllm_ascend")
"""Packages of a host. torch_npu is not among them; see torch_npu_names."""
CLASS_PATH = re.compile(r"(?:vllm|vllm_ascend)\.[\w.]+:[\w.]+")


@dataclass(frozen=True)
class Placed:
    """A record and the file that it stands in."""

    record: Record
    file: Path

    @property
    def notes(self) -> Notes:
        """Why it stands there, until when, and which tests notice."""
        return notes(self.record.name, self.file.relative_to(ADAPTERS).parts[0])


def sources(adapter: str) -> list[Path]:
    """Files of one adapter, by the name of its folder, and those that all adapters share."""
    own, common = (ADAPTERS / adapter).rglob("*.py"), (ADAPTERS / "common").rglob("*.py")
    return sorted([*ADAPTERS.glob("*.py"), *common, *own])


def all_sources() -> list[Path]:
    """Files of all adapters."""
    return sorted(ADAPTERS.rglob("*.py"))


def name_of(adapter: HostAdapter) -> str:
    """The name of an adapter's folder."""
    return adapter.FINGERPRINTS.parent.name


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of one of our files."""
    return ast.parse(path.read_text(encoding="utf-8"))


def records(files: Iterable[Path]) -> list[Placed]:
    """Every record that stands in these files, with the targets that these files add to it.

    Raises:
        ValueError: an argument of a record is no literal.
    """
    read = [path for path in files if path.name != "patching.py"]
    added: dict[str, tuple[str, ...]] = {}
    for path in read:
        for patched, target in _of_one_host(path):
            added[patched] = (*added.get(patched, ()), target)
    found = []
    for path in read:
        for made, name in _records_alone(path):
            more = added.get(name, ())
            whole = replace(made, target=(*made.targets, *more)) if more else made
            found.append(Placed(whole, path))
    return found


@functools.cache
def _records_alone(path: Path) -> tuple[tuple[Record, str], ...]:
    """Records of a file, and the names of the patches that have them, if any."""
    texts, names = constants(tree_of(path)), _names_of_patches(path)
    return tuple(
        (_record(node, texts, path), names.get(node, ""))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("patch", "record")
    )


def _names_of_patches(path: Path) -> dict[ast.expr, str]:
    """Decorators of functions in a file -> names of the functions, by which patches are known."""
    functions = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef))
    return {decorator: made.name for made in functions for decorator in made.decorator_list}


@functools.cache
def _of_one_host(path: Path) -> tuple[tuple[str, str], ...]:
    """Names of patches, and targets that ``Patch.on_one_host`` adds to them in a file."""
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "on_one_host":
            _, patched, _ = f".{ast.unparse(node.func)}".rsplit(".", 2)
            found.append((patched, str(ast.literal_eval(node.keywords[0].value))))
    return tuple(found)


def _record(call: ast.Call, texts: Mapping[str, str], path: Path) -> Record:
    given: dict[str, Any] = {}
    for keyword in call.keywords:
        try:
            given[str(keyword.arg)] = _literal(keyword.value, texts)
        except (ValueError, KeyError):
            raise ValueError(
                f"{path}:{keyword.value.lineno}: {keyword.arg} of a record must be text or a tuple "
                "of texts, so that tools can read it without importing the host"
            ) from None
    return Record(**given)


def _literal(node: ast.expr, texts: Mapping[str, str]) -> Any:
    if isinstance(node, ast.Name):
        return texts[node.id]
    if isinstance(node, ast.Tuple):
        return tuple(_literal(item, texts) for item in node.elts)
    return ast.literal_eval(node)


def constants(tree: ast.Module) -> dict[str, str]:
    """Texts that a file binds to names."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def imports(files: Iterable[Path]) -> dict[str, set[Path]]:
    """``module:name`` of the host -> our files that import or read it."""
    found: dict[str, set[Path]] = {}
    for path in files:
        for name in _imported(tree_of(path)):
            found.setdefault(name, set()).add(path)
    for path in sorted(CATALOG.glob("*.py")):
        for node in ast.walk(tree_of(path)):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and CLASS_PATH.fullmatch(text):
                found.setdefault(text, set()).add(path)
    return found


def bound_names(tree: ast.Module) -> dict[str, str]:
    """Names that a file binds by importing from the host -> ``module:name`` or ``module:``."""
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _of_host(node.module):
            bound.update({a.asname or a.name: f"{node.module}:{a.name}" for a in node.names})
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _of_host(alias.name):
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    bound[alias.asname or whole] = f"{whole}:"
    return bound


def _imported(tree: ast.Module) -> Iterator[str]:
    bound = bound_names(tree)
    yield from bound.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            source = bound.get(node.value.id)
            # Attributes of a class may be inherited or set at run time; those of a module are not.
            if source is not None and node.value.id[0].islower():
                module, _, name = source.partition(":")
                yield f"{module}:{name}.{node.attr}" if name else f"{module}:{node.attr}"


def _of_host(module: str | None) -> bool:
    return (module or "").partition(".")[0] in HOSTS
