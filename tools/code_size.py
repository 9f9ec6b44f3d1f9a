# SPDX-License-Identifier: Apache-2.0
"""Lines of code by room of the package, files and replaced foreign targets.

A line of code has a token of its own: no blank lines, comments, docstrings or imports.
"""

from __future__ import annotations

import argparse
import ast
import json
import tokenize
from pathlib import Path

import foreign_names

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mkv_ascend"
SHORT = 60
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(path: Path) -> int:
    """Lines of ``path`` that hold code."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    passed_over: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) and _is_no_code(node):
            passed_over.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    with path.open("rb") as file:
        lines = {
            line
            for token in tokenize.tokenize(file.readline)
            if token.type not in NOT_CODE
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len(lines - passed_over)


def _is_no_code(node: ast.Import | ast.ImportFrom | ast.Expr) -> bool:
    """An import or a docstring, which attributes have behind them."""
    if not isinstance(node, ast.Expr):
        return True
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def room_of(path: Path, package: Path) -> str:
    """The folder below ``package``; of adapters that of the host or what hosts share."""
    parts = path.relative_to(package).parts
    depth = 3 if parts[:2] == ("adapters", "common") else 2 if parts[0] == "adapters" else 1
    return "/".join(parts[:-1][:depth]) or "."


def replaced_targets() -> dict[str, int]:
    """Functions of vLLM and vllm-ascend that records name, by the adapter's folder."""
    folders = sorted(path.name for path in foreign_names.ADAPTERS.glob("vllm_ascend_*"))
    return {folder: len(_targets_of(folder)) for folder in folders}


def _targets_of(folder: str) -> set[str]:
    placed = foreign_names.records(foreign_names.sources(folder))
    return {target for one in placed for target in one.record.targets}


def measured(package: Path = PACKAGE) -> dict[str, object]:
    """Rooms with their files, short files and lines of code, and what all come to."""
    rooms: dict[str, list[int]] = {}
    for path in sorted(package.rglob("*.py")):
        rooms.setdefault(room_of(path, package), []).append(code_lines(path))
    return {
        "rooms": {
            room: {"files": len(sizes), "code": sum(sizes)} for room, sizes in sorted(rooms.items())
        },
        "files": sum(map(len, rooms.values())),
        "code": sum(map(sum, rooms.values())),
        "short": sum(size < SHORT for sizes in rooms.values() for size in sizes),
        "targets": replaced_targets(),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="for programs")
    found = measured()
    if parser.parse_args().json:
        print(json.dumps(found, indent=2))
        return
    rooms = found["rooms"]
    assert isinstance(rooms, dict)
    for room, of_room in rooms.items():
        print(f"{of_room['code']:7,} {of_room['files']:4}  {room}")
    print(f"{found['code']:7,} {found['files']:4}  together; {found['short']} files under {SHORT}")
    print("replaced targets:", found["targets"])


if __name__ == "__main__":
    main()
