# SPDX-License-Identifier: Apache-2.0
"""Verdicts on disk, so that a run that was stopped goes on where it was.

A verdict is found again only while everything that decides it is unchanged: the cell, the tiny
models, the sources and native parts that the side runs, and the versions of the packages below it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.matrix.cells import Cell
from benchmarks.matrix.running import STOCK, Verdict
from tests.support.tiny_models.store import content_digest, is_kept

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "matrix"

MODELS = "tiny_models"
"""Folder of sources that decide the tiny models alone, which are part of the question."""

NOT_JUDGED = (
    "cells.py", "families.py", "store.py", "table.py", "progress.py", "workers.py", "__main__.py",
)  # fmt: skip
"""Sources of this package that change no verdict; the cell itself is part of the question."""

JUDGES = ("emulated_npu/src/emulated_npu", "tests/support")
"""Folders of what runs and judges both sides."""

STANDS_ON = ("vllm", "vllm-ascend", "torch", "transformers", "triton")


def find(cell: Cell, side: str) -> Verdict | None:
    """The verdict of an earlier run, if it would be the same now."""
    if not all(map(is_kept, cell.models)):
        return None
    path = _path(cell, side)
    return Verdict(**json.loads(path.read_text())) if path.is_file() else None


def keep(cell: Cell, side: str, verdict: Verdict) -> None:
    """Write ``verdict`` down, whole or not at all."""
    path = _path(cell, side)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(verdict.as_json()))
    aside.replace(path)


def _path(cell: Cell, side: str) -> Path:
    models = {name: content_digest(name) for name in cell.models}
    versions = {name: version(name) for name in STANDS_ON}
    content = [asdict(cell), side, models, versions, sources_digest(side)]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return FOLDER / f"{cell.name.replace('/', '_with_')}.{side}.{digest}.json"


@functools.cache
def sources_digest(side: str, root: Path = ROOT) -> str:
    """SHA-256 over what runs on ``side``: of the stock side, only the emulator and the judges."""
    folders = list(JUDGES) if side == STOCK else [*JUDGES, "mkv_ascend"]
    files = [root / "mkv_ascend" / "envs.py"]
    for folder in folders:
        files += [path for path in (root / folder).rglob("*") if path.suffix in (".py", ".so")]
    files += [path for path in Path(__file__).parent.glob("*.py") if path.name not in NOT_JUDGED]
    digest = hashlib.sha256()
    for file in sorted({file for file in files if MODELS not in file.parts}):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
