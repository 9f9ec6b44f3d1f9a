# SPDX-License-Identifier: Apache-2.0
"""A class of vLLM or vllm-ascend has at most one class of ours above it, in all adapters."""

import ast
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import foreign_names

ROOT = foreign_names.ROOT
FOREIGN = ("vllm", "vllm_ascend")


def imported(tree: ast.Module, module: str) -> dict[str, str]:
    """Name in a file -> the qualified name that it stands for, of imports and of own classes."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {x.asname or x.name: f"{node.module}.{x.name}" for x in node.names}
        elif isinstance(node, ast.Import):
            found |= {x.asname or x.name: x.name for x in node.names}
        elif isinstance(node, ast.ClassDef):
            found[node.name] = f"{module}.{node.name}"
    return found


def bases_of_classes(files: Iterable[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Qualified name of each class of these modules -> those of its bases."""
    found = {}
    for module, tree in files:
        names = imported(tree, module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                written = [ast.unparse(base).partition("[")[0] for base in node.bases]
                found[f"{module}.{node.name}"] = [
                    names.get(first, first) + dot + rest
                    for first, dot, rest in (name.partition(".") for name in written)
                ]
    return found


def towers(files: Iterable[tuple[str, ast.Module]]) -> Iterator[str]:
    """Classes of ours over another of ours that has a foreign class below it."""
    bases = bases_of_classes(files)

    def is_over_foreign(name: str) -> bool:
        return name.partition(".")[0] in FOREIGN or any(map(is_over_foreign, bases.get(name, ())))

    for name, below in bases.items():
        for base in below:
            if base in bases and is_over_foreign(base):
                yield f"{name} is over {base}"


def ours() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "mkv_ascend").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield module, foreign_names.tree_of(path)


def test_a_foreign_class_has_at_most_one_class_of_ours_above_it() -> None:
    assert [*towers(ours())] == []


def test_a_tower_is_found() -> None:
    """Also over a module of the host, and in a file of ours that imports the first floor."""
    first = "from vllm_ascend.worker import worker\nclass First(worker.NPUWorker): ..."
    second = "from mkv_ascend.first import First\nclass Second(First): ..."
    files = [
        (name, ast.parse(textwrap.dedent(text)))
        for name, text in (("mkv_ascend.first", first), ("mkv_ascend.second", second))
    ]
    assert [*towers(files)] == ["mkv_ascend.second.Second is over mkv_ascend.first.First"]
    known = {Path(name).suffix for name in bases_of_classes(ours())}
    assert {".MkvPlatform", ".MkvWorker", ".MkvModelRunner"} <= known
