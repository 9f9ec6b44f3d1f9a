# SPDX-License-Identifier: Apache-2.0
"""Prompts of real text for tests and the demo, and decks, the prompts that need every key.

Texts come from the part of the corpus that no tiny model was trained on. Which bytes are taken is
fixed; what they are depends on the running Python (see ``tiny_models.corpus``).
"""

from __future__ import annotations

import random

from tests.support.tiny_models.batches import deck_line
from tests.support.tiny_models.corpus import load_corpus

TEXT_LENGTHS: tuple[int, ...] = (1, 5, 17, 40, 64, 100, 126, 127, 128, 200, 255, 256, 300)
"""Bytes of each text prompt; with ``<bos>`` some end just before, at and after a block of 128."""


def held_out_text(index: int, length: int) -> str:
    """``length`` characters of held-out text, from place number ``index``, of ASCII files only."""
    pieces = [piece for piece in load_corpus().held_out if piece.isascii() and len(piece) > length]
    if not pieces:
        raise ValueError(f"no held-out text is longer than {length} bytes; ask for fewer")
    piece = pieces[index % len(pieces)]
    # 97 is prime to the lengths of the pieces often enough to spread the places over them.
    start = (97 * (index + 1)) % (len(piece) - length)
    return piece[start : start + length].decode("ascii")


def text_prompts() -> list[str]:
    """One prompt of real text for each of ``TEXT_LENGTHS``."""
    return [held_out_text(index, length) for index, length in enumerate(TEXT_LENGTHS)]


def demo_prompts(count: int = 4) -> list[str]:
    """Prompts of a readable length that start at the beginning of a line, where there is one."""
    prompts = []
    for index in range(count):
        text = held_out_text(3 * index, 240)
        prompts.append(text[text.find("\n") + 1 :][:120].rstrip(" "))
    return prompts


def deck_prompts(count: int, letters: int = 12, seed: int = 1) -> list[str]:
    """Started decks, ``{`` and ``letters`` of the 26 letters: going on needs every key."""
    if not 0 <= letters <= 26:
        raise ValueError(f"a deck has 26 letters; {letters} were asked for")
    generator = random.Random(seed)
    return [deck_line(generator)[: 1 + letters].decode("ascii") for _ in range(count)]
