# SPDX-License-Identifier: Apache-2.0
"""Words for layers: role and kind, which everything else is keyed by, and names written short."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Word(str, Enum):
    """A string enum that prints as its value on every Python (StrEnum needs 3.11)."""

    def __str__(self) -> str:
        return str(self.value)


class Role(Word):
    """Which model a layer belongs to."""

    TARGET = "target"
    DRAFT = "draft"


class Kind(Word):
    """What a layer keeps in its cache."""

    FULL_ATTENTION = "full_attention"
    """Keys and values of every token."""
    SLIDING_WINDOW = "sliding_window"
    """Keys and values of the last tokens of a window."""
    CHUNKED_LOCAL = "chunked_local"
    """Keys and values of the tokens of one chunk."""
    MLA = "mla"
    """One latent vector and one rope key per token (multi-head latent attention)."""
    SPARSE_MLA = "sparse_mla"
    """MLA with an indexer that picks the tokens to attend to (DeepSeek sparse attention)."""
    COMPRESSED_MLA = "compressed_mla"
    """MLA over compressed tokens, with a window and an indexer (DeepSeek-V4)."""
    MAMBA = "mamba"
    """A state of fixed size: convolution and state space, gated delta net, short convolution."""
    HIDDEN_STATE = "hidden_state"
    """Hidden states that another model reads."""
    CROSS_ATTENTION = "cross_attention"
    """Keys and values of the encoder's tokens."""


def abbreviated_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names with their first number written as ranges, in order of first appearance.

    Names that differ only in their first numeric component share one text, such as
    ``layers.0-11.attn`` or ``layers.[0-4, 6-10].attn``.
    """
    numbers: dict[tuple[str, str], set[int]] = {}
    for name in names:
        before, number, after = _split(name)
        numbers.setdefault((before, after), set()).update(number)
    return tuple(f"{before}{_ranges(found)}{after}" for (before, after), found in numbers.items())


def _split(name: str) -> tuple[str, list[int], str]:
    """Text before the first numeric component, the number if there is one, the text after it."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        # A part such as "007" would not come back from its number.
        if part.isascii() and part.isdigit() and str(int(part)) == part:
            before = "".join(f"{part}." for part in parts[:index])
            after = "".join(f".{part}" for part in parts[index + 1 :])
            return before, [int(part)], after
    return name, [], ""


def _ranges(numbers: set[int]) -> str:
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return f"[{', '.join(texts)}]" if len(texts) > 1 else "".join(texts)
