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

_CASE = "numpy reads the name of a way to sort in either case"

_ALL_GROUPS = "both have one for each KV group; strict guards against a mistake of ours"
_LOOPED_BEFORE = "a loop over the same has refused unequal ones before"
_EACH_LEVEL = "both have one for each level that is left"
_EACH_TYPE = "both have one for each type of the bundle"

LENIENT_LOOPS: dict[tuple[str, str], str] = {
    (
        "drafting.needs.xǁNeedsǁlater_passes",
        "zip(made, per_pass",
    ): "a builder makes metadata for each of the later passes that it is given",
    (
        "drafting.plan.xǁDraftPlanǁ__init__",
        "zip(self.block_tables, self._block_sizes",
    ): _ALL_GROUPS,
    (
        "drafting.plan.xǁDraftPlanǁ_copy_tables",
        "zip(self._read_tables, self.block_tables",
    ): _ALL_GROUPS,
    (
        "drafting.plan.xǁDraftPlanǁ_write_slots_of_rejected",
        "zip(self.first_slots, self.block_tables, self._block_sizes",
    ): _ALL_GROUPS,
    (
        "drafting.recurrent_groups.xǁRecurrentGroupsǁtake_rows",
        "zip(self._tables, engine._tables",
    ): _ALL_GROUPS,
    (
        "drafting.recurrent_groups.xǁRecurrentGroupsǁrefresh_tables",
        "zip(self._tables, engine._tables",
    ): _ALL_GROUPS,
    (
        "layout.bound.xǁBoundPlanǁ_layer",
        "zip(layout.components, member.placements",
    ): "a plan compares their names when it is made",
    ("layout.grouping.x__assign", "zip(bundle.types, bundle.group_of_layers(types)"): _EACH_TYPE,
    (
        "layout.grouping.x__assign",
        "zip(members[types[index]], places",
    ): "a bundle has a place for each layer of a type",
    (
        "layout.grouping.x__tokens_of_hits",
        "zip(tokens, pages",
    ): "the pages are made from the rows",
    (
        "layout.materialize.x__view",
        "zip(view.shape, view.strides",
    ): "a bound plan has a stride for each axis",
    (
        "layout.plan.xǁCachePlanǁ_check_placements",
        "zip(layout.components, member.placements",
    ): "their names have been compared before",
    (
        "layout.recipes.x__recurrent",
        "zip(_state_names(shapes), shapes, dtypes",
    ): "unequal ones have been refused before, and each state has a name",
    (
        "layout.report_html.x__figures",
        "zip(_in_order(report, drawn.pool), drawn.layers",
    ): "the names are those of the pool in this order",
    (
        "layout.report_html.x_drawn_pools",
        "zip(*([member.layer for member in pool] for pool in pools)",
    ): "pools that look alike have equally many layers",
    (
        "layout.report.xǁPlanReportǁwithout_draft",
        "zip(layouts, self.grouping.groups",
    ): "the groups of the plan are made from those of the grouping",
    ("layout.report_text.x_served_text", "zip(request_blocks, used"): _LOOPED_BEFORE,
    ("layout.search.xǁ_Searchǁrun", "zip(roots, curves"): "the curves are made from the roots",
    ("layout.search.xǁ_Searchǁcurve", "zip(node.left, needed"): _EACH_LEVEL,
    ("layout.search.xǁ_Searchǁrecord_along", "zip(node.left, curve.best"): _EACH_LEVEL,
    (
        "layout.search.xǁ_Searchǁleave",
        "zip(groups.tolist(), held.tolist()",
    ): "both have one for each size of a block of the curve",
    ("layout.search.xǁ_Searchǁcompare", "zip(levels, options"): "both are of one or of two levels",
    (
        "layout.search.xǁ_Searchǁcompare",
        "zip(levels, (int(option[row]) for option in options)",
    ): _LOOPED_BEFORE,
    (
        "layout.search_options.xǁBundleǁgroup_of_layers",
        "zip(starts, counts",
    ): "the starts are made from the counts",
    (
        "layout.search_options.xǁChoicesǁ_make_level",
        "zip(*rows",
    ): "each row has the same columns",
    ("layout.search_options.xǁChoicesǁ_assignments", "zip(each, counts"): _EACH_TYPE,
    ("layout.search_options.xǁChoicesǁ_assignments", "zip(each, group"): _EACH_TYPE,
    (
        "layout.search_options.xǁChoicesǁbytes_of",
        "zip(self.plane_index, planes",
    ): "both have one for each plane",
    ("layout.search_options.x__assign_by_load", "zip(needs[1:], counts[1:]"): _EACH_TYPE,
    (
        "layout.search_options.x__assign_by_load",
        "zip(growth, own, range(splits)",
    ): "all have one for each group",
    ("layout.search_options.x__held", "zip(needs, placed"): _EACH_TYPE,
    (
        "layout.search_options.x__held_by_groups",
        "zip(starts, counts",
    ): "the starts are made from the counts",
}
"""Module and function, and what is looped over -> why leaving out its ``strict`` changes nothing:
it guards against a mistake of ours that is not made."""
_LENIENT = ("", ", strict=None", ", strict=False")

_WITHOUT = "return Cost(len(groups), blocks * block_bytes, "
_WIDEST = "widest = max((pool.bytes_per_block for pool in report.plan.pools), default="
_WIDTH = "width = max((len(word) for word, _ in report.subjects), default="

_GIVEN = "Grouping(objective=inputs.options.objective, groups=groups, block_bytes="
_GIVEN_REST = (
    "cost=cost, other_cost=cost, alternatives=(cost,), exhaustive=True, "
    "bound_bytes=cost.held_bytes)"
)

_PADDED = "padded_rows: int="
_OF_STRATEGY = f"def function(self, target: TargetOutput, {_PADDED}"
_OF_PLAN = f"def function(self, target: TargetOutput, buffers: DraftBuffers, {_PADDED}"
_NO_PADDING = "a first pass has a row at least, so it is not padded to one"

_LATER_LENGTHS = "the host does not know them yet: what it knows later replaces them in any batch"
_WINDOW = (
    "    return PassBatch(index=0, requests=requests, rows=rows, input_rows=input_rows, "
    "rows_across_ranks=rows_across_ranks, query_start_loc=self._starts[:requests + 1], "
    "query_start_loc_host=self._host_starts[:requests + 1], longest_row=size, lengths={}, "
    "host_lengths={}, length_bounds={}, positions=self._draft.buffers.positions[:rows], "
    "slots=tuple(self._slots[:groups * rows].view(groups, rows)), tables=later.tables, "
    "common=target.common, causal=False)"
)
_LENGTHS = ("later.lengths[0]", "target.host_lengths", "target.length_bounds")
_WINDOWS = [
    (f"-{_WINDOW.format(*_LENGTHS)}", f"+{_WINDOW.format(*others)}")
    for others in (
        ("None", *_LENGTHS[1:]),
        ("later.lengths[1]", *_LENGTHS[1:]),
        (_LENGTHS[0], "None", _LENGTHS[2]),
        (*_LENGTHS[:2], "None"),
    )
]

EQUIVALENT: dict[tuple[str, str], str] = {
    **{
        (f"drafting.{strategy}ǁlay_out", f"-{_OF_STRATEGY}0) -> int:\n+{_OF_STRATEGY}1) -> int:"): (
            _NO_PADDING
        )
        for strategy in (
            "attention_strategy.xǁAttentionStrategy",
            "mask_tokens_strategy.xǁMaskTokensStrategy",
            "recurrent_strategy.xǁRecurrentStrategy",
        )
    },
    (
        "drafting.plan.xǁDraftPlanǁexpand",
        f"-{_OF_PLAN}0) -> int:\n+{_OF_PLAN}1) -> int:",
    ): _NO_PADDING,
    **{
        ("drafting.mask_tokens_strategy.xǁMaskTokensStrategyǁ_batch", "\n".join(window)): (
            _LATER_LENGTHS
        )
        for window in _WINDOWS
    },
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
    (
        "layout.building.x__check_page",
        "-    if used != page and (padded is None or padded < used or page != padded):\n"
        "+    if used != page and (padded is None or padded <= used or page != padded):",
    ): "a page that is not what is used is not padded to that either",
    (
        "layout.objective.x_choose",
        "-    limit = 1.0 if max_padding_fraction is None else max_padding_fraction\n"
        "+    limit = 2.0 if max_padding_fraction is None else max_padding_fraction",
    ): "padding is no more than all",
    (
        "layout.planning.x__kernel_block",
        "-    replicated = (layout.kernel_block or 0) > layout.tokens_per_block\n"
        "+    replicated = (layout.kernel_block or 1) > layout.tokens_per_block",
    ): "a block has a token at least",
    (
        "layout.planning.x__given",
        f"-    return {_GIVEN}block_bytes, {_GIVEN_REST}\n+    return {_GIVEN}None, {_GIVEN_REST}",
    ): "what the pools take is set in its place",
    (
        "layout.plan.xǁCachePlanǁ__post_init__",
        "-    if self.alignment <= 0 or self.alignment % BUFFER_ALIGNMENT:\n"
        "+    if self.alignment <= 1 or self.alignment % BUFFER_ALIGNMENT:",
    ): "one byte is no multiple of the alignment either",
    (
        "layout.pooling.x__choose",
        "-        best, best_cost = (None, (_weight(needed), 0))\n"
        "+        best, best_cost = (None, (_weight(needed), 1))",
    ): "a pool with planes has a byte at least",
    (
        "layout.search.xǁ_Searchǁ__post_init__",
        "-    self.known: Integers = np.full(most + 1, unknown, dtype=np.int64)\n"
        "+    self.known: Integers = np.full(most + 1, unknown, dtype=None)",
    ): "numpy holds so large a whole number in 64 bits",
    (
        "layout.search_options.xǁChoicesǁ_assignments",
        "-    for splits in range(1, sum(counts) + 1):\n"
        "+    for splits in range(1, sum(counts) + 2):",
    ): "a group more than there are layers is empty, and what changes no planes is left out",
    (
        "layout.search.xǁ_Searchǁcurve",
        "-        order = np.argsort(needs, kind='stable')\n"
        "+        order = np.argsort(needs, kind='STABLE')",
    ): _CASE,
    (
        "layout.search.xǁ_Searchǁpromising",
        "-    order = np.argsort(lowest, kind='stable')\n"
        "+    order = np.argsort(lowest, kind='STABLE')",
    ): _CASE,
    (
        "layout.search.x__best_by_groups",
        "-    rows = np.flatnonzero(costs < known[groups])\n"
        "+    rows = np.flatnonzero(costs <= known[groups])",
    ): "what is known already is not recorded anew, and is no bound that is below it",
    (
        "layout.recipes.x__compressed",
        "-    scale_dim = getattr(spec, 'scale_dim', 0)\n"
        "+    scale_dim = getattr(spec, 'scale_dim', None)",
    ): "it is only asked whether it is true",
    (
        "layout.report.xǁPlanReportǁwithout_draft",
        f"-    {_WITHOUT}0, block_bytes, blocks)\n+    {_WITHOUT}1, block_bytes, blocks)",
    ): "what the answer says of it is told by the other numbers",
    (
        "layout.report.xǁPlanReportǁwithout_draft",
        f"-    {_WITHOUT}0, block_bytes, blocks)\n+    {_WITHOUT}None, block_bytes, blocks)",
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
        "drafting.needs.xǁLaterMetadataǁ_pass",
        "-        if index > 0:\n+        if index >= 0:",
    ): "a copy for the slots and the table that it was built with says the same",
    (
        "drafting.plan.xǁDraftPlanǁ__init__",
        "-    self.host_counts = torch.arange("
        "sizes.max_requests + 1, dtype=torch.int32, device='cpu')\n"
        "+    self.host_counts = torch.arange("
        "sizes.max_requests + 2, dtype=torch.int32, device='cpu')",
    ): "a batch reads no more counts than it has requests",
    (
        "drafting.plan.xǁDraftPlanǁexpand",
        "-        self._write_slots_of_rejected(requests, rows)\n"
        "+        self._write_slots_of_rejected(requests, None)",
    ): "rows behind those of all requests are no request's, and keep their slots",
    (
        "drafting.plan.xǁDraftPlanǁ_write_slots_of_rejected",
        "-        column = (position // size).clamp_(0, table.shape[1] - 1)\n"
        "+        column = (position // size).clamp_(None, table.shape[1] - 1)",
    ): "torch counts a column before the table from its end, and no slot is made of what it reads",
    (
        "drafting.recurrent_strategy.xǁRecurrentStrategyǁrefresh_tables",
        "-    planned = self._planner.plan.later_passes(requests, requests)\n"
        "+    planned = self._planner.plan.later_passes(requests, None)",
    ): "only the lengths of all rows are read",
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


def reason_of(function: str, diff: str) -> str | None:
    """Why this change of a function, as printed, does the same; None if it is not known to."""
    if (function, diff) in EQUIVALENT:
        return EQUIVALENT[function, diff]
    before, _, after = diff.partition("\n")
    for (where, looped), reason in LENIENT_LOOPS.items():
        strict = f"{looped}, strict=True)"
        if where == function and strict in before:
            lenient = (before.replace(strict, f"{looped}{rest})") for rest in _LENIENT)
            if after in ("+" + line[1:] for line in lenient):
                return reason
    return None
