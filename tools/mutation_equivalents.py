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

_ALL_GROUPS = "both have one for each KV group; strict guards against a mistake of ours"
_REJECTED = ("drafting.plan.xǁDraftPlanǁ_write_slots_of_rejected", "slots, table, size")
_REJECTED_ZIP = "zip(self.first_slots, self.block_tables, self._block_sizes"
_TAKEN = ("drafting.recurrent_groups.xǁRecurrentGroupsǁtake_rows", "own, table")
_REFRESHED = ("drafting.recurrent_groups.xǁRecurrentGroupsǁrefresh_tables", "own, table")
_TABLES_ZIP = "zip(self._tables, engine._tables"


def _lenient(function: str, names: str, zipped: str) -> dict[tuple[str, str], str]:
    """A loop over things of all KV groups, whose ``strict`` is left out, None or False."""
    strict = f"-    for {names} in {zipped}, strict=True):\n"
    changed = (f"+    for {names} in {zipped}{rest}):" for rest in LENIENT)
    return {(function, strict + line): _ALL_GROUPS for line in changed}


LENIENT = ("", ", strict=None", ", strict=False")

_SERVED_HELD = "held = sum((number * size for number, size in zip(request_blocks, used"
_SERVED = {
    (
        "layout.report_text.x_served_text",
        f"-    {_SERVED_HELD}, strict=True)))\n+    {_SERVED_HELD}{rest})))",
    ): "a loop over the same lists has refused unequal ones before"
    for rest in LENIENT
}

_ALIKE = "names = zip(*([member.layer for member in pool] for pool in pools)"
_DRAWN = {
    (
        "layout.report_html.x_drawn_pools",
        f"-        {_ALIKE}, strict=True)\n+        {_ALIKE}{rest})",
    ): "pools that look alike have equally many layers"
    for rest in LENIENT
}
_WITHOUT = "return Cost(len(groups), blocks * block_bytes, "
_WIDEST = "widest = max((pool.bytes_per_block for pool in report.plan.pools), default="
_WIDTH = "width = max((len(word) for word, _ in report.subjects), default="

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
    (
        "drafting.draft_counts.xǁDraftCountsǁshapes",
        "-    numbers = range(1, len(self.by_requests))\n"
        "+    numbers = range(len(self.by_requests))",
    ): "no batch has no requests, so what is drafted for none has no shape",
    (
        "drafting.draft_counts.xǁDraftCountsǁshapes",
        "-        most = min(numbers[-1], max_tokens // each)\n"
        "+        most = min(numbers[-1], max_tokens / each)",
    ): "whole numbers are compared with it",
    **_lenient(*_REJECTED, _REJECTED_ZIP),
    **_lenient(*_TAKEN, _TABLES_ZIP),
    **_lenient(*_REFRESHED, _TABLES_ZIP),
    **_SERVED,
    **_DRAWN,
    (
        "layout.report.xǁPlanReportǁwithout_draft",
        f"-    {_WITHOUT}0, block_bytes, blocks)\n+    {_WITHOUT}1, block_bytes, blocks)",
    ): "what the answer says of it is told by the other numbers",
    (
        "layout.report_html.x__figures",
        f"-    {_WIDEST}1)\n+    {_WIDEST}None)",
    ): "a plan without pools has no figure to which the widest is compared",
    (
        "layout.report_text.x_text",
        f"-    {_WIDTH}0)\n+    {_WIDTH}None)",
    ): "without subjects there is no line of this width",
    (
        "drafting.strategy.xǁStrategyǁlay_out",
        "-def function(self, target: TargetOutput, padded_rows: int=0) -> int:\n"
        "+def function(self, target: TargetOutput, padded_rows: int=1) -> int:",
    ): "a protocol is never called",
    (
        "drafting.worth.xǁDraftWorthǁ__init__",
        "-    self._is_found = False\n+    self._is_found = None",
    ): "it is only asked whether it is true",
}
"""Module and function, and the changed lines as ``tools/mutation.py --diffs`` prints them -> why
no test can notice the change."""
