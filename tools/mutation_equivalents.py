# SPDX-License-Identifier: Apache-2.0
"""Mutants that do the same as the original, each with the reason."""

from __future__ import annotations

_NO_KIND = "vLLM's option has no backend for a kind without a name, whatever stands for that name"
_BY_KIND = "-    kind = VLLM_KINDS.get(request.kind, '')\n+    kind = VLLM_KINDS.get(request.kind"

_NEAREST = "only the nearest name is used, and it comes first of any number"
_NEAR = (
    "-    near = difflib.get_close_matches(name_or_alias.lower(), _ALIASES, n=1)\n"
    "+    near = difflib.get_close_matches(name_or_alias.lower(), _ALIASES"
)
_PART = "any((matcher.ends_of(pattern.parsed, start, pattern.flags) for start in range(len(name) + "
_BEHIND = "    return any((start in self.ends_of(inner, begin, flags) for begin in range(start + "

EQUIVALENT: dict[tuple[str, str], str] = {
    ("attention.catalog.x_find", f"{_NEAR})"): _NEAREST,
    ("attention.catalog.x_find", f"{_NEAR}, n=2)"): _NEAREST,
    (
        "attention.matching.x_matches_part",
        f"-    return {_PART}1)))\n+    return {_PART}2)))",
    ): "behind the end re finds what it finds at the end",
    (
        "attention.matching.xǁ_Matcherǁholds",
        "-    if direction > 0:\n+    if direction >= 0:",
    ): "a look is ahead (1) or behind (-1)",
    (
        "attention.matching.xǁ_Matcherǁholds",
        f"-{_BEHIND}1)))\n+{_BEHIND}2)))",
    ): "a match that begins behind a place cannot end there",
    ("attention.selection.x__vllm_option", f"{_BY_KIND})"): _NO_KIND,
    ("attention.selection.x__vllm_option", f"{_BY_KIND}, None)"): _NO_KIND,
    ("attention.selection.x__vllm_option", f"{_BY_KIND}, 'XXXX')"): _NO_KIND,
}
"""Module and function, and the changed lines as ``tools/mutation.py --diffs`` prints them -> why
no test can notice the change."""
