# SPDX-License-Identifier: Apache-2.0
"""Text that the tiny models are trained on, and that prompts come from: files of this repository.

They are a copy of sources and pages of ours that does not change with them, so that each machine,
with each Python, has the same prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "data" / "tiny_models" / "text"

HELD_OUT_SHARE = 10
"""One part in this many, at the end of each file, is never trained on: prompts come from it."""


@dataclass(frozen=True)
class Corpus:
    """The text as bytes, split by file into what is trained on and what is held out."""

    training: tuple[bytes, ...]
    held_out: tuple[bytes, ...]


def split_at_line(text: bytes) -> tuple[bytes, bytes]:
    """Cut off about the last ``1 / HELD_OUT_SHARE`` of ``text``, at the start of a line."""
    wanted = len(text) - len(text) // HELD_OUT_SHARE
    cut = text.find(b"\n", wanted) + 1
    return (text[:cut], text[cut:]) if cut else (text, b"")


@lru_cache(maxsize=1)
def load_corpus() -> Corpus:
    """The text of all files, in the order of their names."""
    pairs = [split_at_line(path.read_bytes()) for path in sorted(FOLDER.glob("*.txt"))]
    return Corpus(
        tuple(first for first, _ in pairs), tuple(second for _, second in pairs if second)
    )
