# SPDX-License-Identifier: Apache-2.0
"""Faults in what recurrent states go on from, and in which blocks they stand."""

from __future__ import annotations

from fault import Fault

ROWS = "common/patches/gdn_rows.py"
VERIFYING = "common/verifying_rows.py"
BLOCKS = "common/patches/draft_state_blocks.py"
GROUPS = "common/patches/target_state_groups.py"
OF_ROWS = ("tests/unit/adapters/test_gdn_rows.py",)
OF_VERIFYING = ("tests/unit/adapters/test_verifying_rows.py",)
OF_BLOCKS = ("tests/emulated/recurrent/test_draft_state_blocks.py",)
OF_GROUPS = ("tests/unit/adapters/test_target_state_groups.py",)

FAULTS = (
    Fault(
        name="a short verify row repeats the token behind its last",
        file=ROWS,
        text="torch.minimum(place, lengths[row] - 1)",
        instead="torch.minimum(place, lengths[row])",
        wrong="The repeated token is the first one of the next request.",
        tests=OF_ROWS,
    ),
    Fault(
        name="verify rows are padded to K tokens",
        file=ROWS,
        text="drafts >= 0, builder.num_spec + 1)",
        instead="drafts >= 0, builder.num_spec)",
        wrong="A row with K - 1 drafts stays short, and goes on from another column.",
        tests=OF_ROWS,
    ),
    Fault(
        name="chunks of prompts are padded, too",
        file=ROWS,
        text="short = verifying & (lengths > 0) & (lengths < width)",
        instead="short = (lengths > 0) & (lengths < width)",
        wrong="A short chunk of a prompt counts as a verify step.",
        tests=OF_ROWS,
    ),
    Fault(
        name="a row without a draft is not padded",
        file=ROWS,
        text="drafts >= 0, builder.num_spec + 1)",
        instead="drafts > 0, builder.num_spec + 1)",
        wrong="A row that verified and has no draft now goes on from column 0.",
        tests=OF_ROWS,
    ),
    Fault(
        name="rows of padding requests are actual tokens",
        file=ROWS,
        text="rows.starts[-1 if requests is None else requests]",
        instead="rows.starts[-1]",
        wrong="Tokens of requests that are not there are computed and written.",
        tests=OF_ROWS,
    ),
    Fault(
        name="computed tokens are counted behind padding",
        file=ROWS,
        text="        _num_computed_tokens_cache=common.compute_num_computed_tokens(),\n",
        instead="",
        wrong="Lengths of padded rows choose the columns.",
        tests=OF_ROWS,
    ),
    Fault(
        name="a graph is given new rows in each step",
        file=ROWS,
        text="    if shape not in kept:\n",
        instead="    if True:\n",
        wrong="A replay reads the rows of the capture, which are freed.",
        tests=OF_ROWS,
    ),
    Fault(
        name="a row that accepted one token is said to have verified",
        file=VERIFYING,
        text="(accepted > 1)",
        instead="(accepted >= 1)",
        wrong="Each decode becomes a verify row, and runs 1 + K tokens.",
        tests=OF_VERIFYING,
    ),
    Fault(
        name="a row that accepted one draft goes on from column 0",
        file=VERIFYING,
        text="(accepted > 1)",
        instead="(accepted > 2)",
        wrong="The state after one accepted draft is in column 1.",
        tests=OF_VERIFYING,
    ),
    Fault(
        name="a prompt whose last token is left counts as decoding",
        file=VERIFYING,
        text="computed < prompts",
        instead="computed < prompts - 1",
        wrong="The last token of a prompt goes on from what a verify step before it accepted.",
        tests=OF_VERIFYING,
    ),
    Fault(
        name="numbers of drafts of an earlier step stay",
        file=VERIFYING,
        text='    if not asked.get("use_spec_decode"):\n',
        instead='    if asked.get("use_spec_decode"):\n',
        wrong="A step without drafts has the numbers of the one before.",
        tests=OF_VERIFYING,
    ),
    Fault(
        name="a draft's states have a block too few",
        file=BLOCKS,
        text="max(0, 1 + manager.num_speculative_blocks - held)",
        instead="max(0, manager.num_speculative_blocks - held)",
        wrong="The state after the last draft is written to another request's block.",
        tests=OF_BLOCKS,
    ),
    Fault(
        name="the largest block of other groups limits hits",
        file=BLOCKS,
        text="cache.block_size = min(sizes)",
        instead="cache.block_size = max(sizes)",
        wrong="Hits are shorter than the target's own.",
        tests=OF_BLOCKS,
    ),
    Fault(
        name="a draft's group of states has a block size of its own",
        file=BLOCKS,
        text="spec = replace(group.kv_cache_spec, block_size=min(sizes))",
        instead="spec = group.kv_cache_spec",
        wrong="Hits are looked for in multiples of the longest context: there are none.",
        tests=OF_BLOCKS,
    ),
    Fault(
        name="states of a draft move with the target's",
        file=GROUPS,
        text='spec.mamba_cache_mode != "none"',
        instead='spec.mamba_cache_mode != "all"',
        wrong="vLLM copies states of the draft from block to block.",
        tests=OF_GROUPS,
    ),
)
