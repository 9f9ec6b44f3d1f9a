# SPDX-License-Identifier: Apache-2.0
"""Drafts in graphs on model runner V2: tokens and every draft token are those of eager mode.

Graphs are captured for 1, 3 and 6 requests, so that batches are on, between and past these sizes.
"""

from dataclasses import replace

import pytest

from tests.support import engine, hosts
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
)
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")


def case_in_graphs(target, draft, k, method="draft_model"):
    return scenario(
        target,
        draft,
        num_speculative_tokens=k,
        speculative={"method": method},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=tuple(requests * (k + 1) for requests in (1, 3, 6)),
        environment=RUNNER_V2,
    )


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["*-2", "llama_target-*"])
@pytest.mark.parametrize(
    ("target", "draft", "k"),
    [
        ("deepseek_v2_target", "deepseek_v2_draft", 3),  # MLA, another rotary base in the draft
        ("gemma3", "gemma3_draft", 2),  # both in several KV groups
        ("llama_target", "deepseek_v32_target", 3),  # sparse: lengths on the device
    ],
)
def test_independent_drafts(target, draft, k):
    case = case_in_graphs(target, draft, k)
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.draft_replays > 5


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["*-dflash-3", "*-mtp-*"])
@pytest.mark.parametrize(
    ("target", "draft", "method", "k"),
    [
        ("gpt_oss", "gpt_oss_eagle3", "eagle3", 3),  # sinks: an operator of their own
        ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 3),
        ("gpt_oss", "gpt_oss_dflash", "dflash", 3),  # a block of masks, in three KV groups
    ],
)
def test_heads_propose_as_in_eager_mode(target, draft, method, k):
    case = case_in_graphs(target, draft, k, method)
    replayed = engine.run(case)
    eager = engine.run(replace(case, graphs=None))
    assert replayed.tokens == eager.tokens
    assert replayed.accepted_per_position == eager.accepted_per_position
    assert by_context(replayed.proposals) == by_context(eager.proposals)
    assert replayed.draft_replays > 5


def by_context(proposals):
    return sorted((proposal.context, proposal.tokens) for proposal in proposals)
