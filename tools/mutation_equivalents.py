# SPDX-License-Identifier: Apache-2.0
"""Mutants that do the same as the original, each with the reason."""

from __future__ import annotations

_NO_KIND = "vLLM's option has no backend for a kind without a name, whatever stands for that name"
_BY_KIND = "-    kind = VLLM_KINDS.get(request.kind, '')\n+    kind = VLLM_KINDS.get(request.kind"

EQUIVALENT: dict[tuple[str, str], str] = {
    ("attention.selection.x__vllm_option", f"{_BY_KIND})"): _NO_KIND,
    ("attention.selection.x__vllm_option", f"{_BY_KIND}, None)"): _NO_KIND,
    ("attention.selection.x__vllm_option", f"{_BY_KIND}, 'XXXX')"): _NO_KIND,
}
"""Module and function, and the changed lines as ``tools/mutation.py --diffs`` prints them -> why
no test can notice the change."""
