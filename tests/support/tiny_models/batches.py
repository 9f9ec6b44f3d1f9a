# SPDX-License-Identifier: Apache-2.0
"""Training data: real text, and decks, the part of the data that needs every key.

A deck is one line ``{`` + the 26 lower-case letters in random order + ``}``. Each letter occurs
once, so what can come next depends on *every* letter before it, and the last letter follows from
the other 25. A model that has learned this notices when one key of its attention is missing; real
text alone does not teach that, since far letters of a text hardly ever decide the next one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.support.tiny_models.tokenizer import BOS_TOKEN_ID

if TYPE_CHECKING:
    import torch

DECK_LETTERS = b"abcdefghijklmnopqrstuvwxyz"

TEXT_LENGTHS = (128, 128, 128, 512)
"""Lengths of the text rows, in tokens, step by step in turn: mostly short, for more variety."""


def deck_line(generator: random.Random) -> bytes:
    """One deck with its braces and a line end: 29 bytes."""
    letters = list(DECK_LETTERS)
    generator.shuffle(letters)
    return b"{" + bytes(letters) + b"}\n"


def text_row(generator: random.Random, text: bytes, length: int) -> list[int]:
    """``<bos>`` and ``length - 1`` bytes from a random place of ``text``."""
    start = generator.randrange(len(text) - length)
    return [BOS_TOKEN_ID, *text[start : start + length - 1]]


def batches(
    pieces: Sequence[bytes], *, seed: int, steps: int, text_tokens: int, decks: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """``steps`` pairs of a text batch and a deck batch, the same for the same arguments.

    Both are token ids, int64: text ``[rows, length]`` with ``rows * length == text_tokens``, decks
    ``[decks, 30]``. Every row starts with ``<bos>``, as every request does.
    """
    import torch

    generator = random.Random(seed)
    text = b"".join(pieces)
    for step in range(steps):
        length = min(TEXT_LENGTHS[step % len(TEXT_LENGTHS)], text_tokens)
        rows = [text_row(generator, text, length) for _ in range(text_tokens // length)]
        deck_rows = [[BOS_TOKEN_ID, *deck_line(generator)] for _ in range(decks)]
        yield torch.tensor(rows), torch.tensor(deck_rows)
