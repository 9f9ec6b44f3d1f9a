# SPDX-License-Identifier: Apache-2.0
"""Text that is on every machine: sources and licence of the running Python.

Which files are read is fixed here; their content is that of the running Python, so two Python
versions train two (slightly) different models. Everything that depends on the text is therefore
cached by the text's hash, and no test writes an expected token down.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SOURCE_FILES: tuple[str, ...] = (
    "bisect.py",
    "configparser.py",
    "contextlib.py",
    "csv.py",
    "functools.py",
    "heapq.py",
    "json/decoder.py",
    "json/encoder.py",
    "random.py",
    "textwrap.py",
    "threading.py",
)
"""Modules of the standard library that Python 3.10 to 3.12 all have, in the order they are read."""

LICENCE_FILE = "LICENSE.txt"
"""Licence text of Python; some distributions leave it out, then the corpus goes without it."""

HELD_OUT_SHARE = 10
"""One part in this many, at the end of each file, is never trained on: prompts come from it."""


@dataclass(frozen=True)
class Corpus:
    """The text as bytes, split by file into what is trained on and what is held out."""

    training: tuple[bytes, ...]
    held_out: tuple[bytes, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over all pieces with their lengths, as hexadecimal text."""
        state = hashlib.sha256()
        for piece in (*self.training, *self.held_out):
            state.update(len(piece).to_bytes(8, "little"))
            state.update(piece)
        return state.hexdigest()


def split_at_line(text: bytes) -> tuple[bytes, bytes]:
    """Cut off about the last ``1 / HELD_OUT_SHARE`` of ``text``, at the start of a line."""
    wanted = len(text) - len(text) // HELD_OUT_SHARE
    cut = text.find(b"\n", wanted) + 1
    return (text[:cut], text[cut:]) if cut else (text, b"")


@lru_cache(maxsize=1)
def load_corpus() -> Corpus:
    """Read the corpus from the running Python.

    Raises FileNotFoundError when the standard library is not there as source files.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [root / name for name in SOURCE_FILES]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"the tiny models train on the sources of Python's standard library, but {missing[0]} "
            "is not there. Use a Python that is installed with its .py files, not a zipped one."
        )
    if (root / LICENCE_FILE).is_file():
        paths.append(root / LICENCE_FILE)
    pairs = [split_at_line(path.read_bytes().replace(b"\r\n", b"\n")) for path in paths]
    return Corpus(
        tuple(first for first, _ in pairs), tuple(second for _, second in pairs if second)
    )
