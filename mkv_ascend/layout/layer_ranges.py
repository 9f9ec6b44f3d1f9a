# SPDX-License-Identifier: Apache-2.0
"""Layer names written short: ``model.layers.[0-4, 6-10].self_attn.attn``."""

from __future__ import annotations

from collections.abc import Iterable


def abbreviated_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names with their first number written as ranges, in order of first appearance.

    Names that differ only in their first numeric component share one text. One range is
    written ``0-11``, several ``[0-4, 6-10]``.
    """
    numbers: dict[tuple[str, str] | str, set[int]] = {}
    for name in names:
        before, number, after = _split(name)
        if number is None:
            numbers.setdefault(name, set())
        else:
            numbers.setdefault((before, after), set()).add(number)
    return tuple(
        key if isinstance(key, str) else f"{key[0]}{_ranges(found)}{key[1]}"
        for key, found in numbers.items()
    )


def _split(name: str) -> tuple[str, int | None, str]:
    """Text before the first numeric component, the number, and the text after it."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        # A part such as "007" would not come back from its number.
        if part.isascii() and part.isdigit() and str(int(part)) == part:
            before = "".join(f"{part}." for part in parts[:index])
            after = "".join(f".{part}" for part in parts[index + 1 :])
            return before, int(part), after
    return name, None, ""


def _ranges(numbers: set[int]) -> str:
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
