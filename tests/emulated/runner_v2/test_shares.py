# SPDX-License-Identifier: Apache-2.0
"""Model runner V2 where ranks share the keys of each sequence (decode context parallelism)."""

from __future__ import annotations

import pytest

from tests.support import engine, hosts, reference, speculation
from tests.support.pairs import (
    TIES,
    assert_greedy_tokens_of_reference,
    prompts_of,
    scenario,
)
from tests.support.shares import IN_GRAPHS, LENGTHS, ONE_KEY_HEAD, RANKS, judged
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
IN_CHUNKS = {**RANKS, "max_num_batched_tokens": 64, "max_num_seqs": 6}


def ran(target, draft, **fields):
    values = {"prompts": prompts_of(target, LENGTHS), "max_tokens": 20, "engine": IN_CHUNKS}
    case = scenario(target, draft, environment=RUNNER_V2, **{**values, **fields})
    return case, engine.run(case)


@pytest.mark.parametrize("graphs", [{}, IN_GRAPHS], ids=["eager", "graphs"])
def test_a_dense_draft_for_mla(graphs):
    case, result = ran("deepseek_v2_target", ONE_KEY_HEAD, **graphs)
    judged(case, result)
    assert bool(result.draft_replays) == bool(graphs)
    assert len(result.proposals) > 40


def test_a_head_on_a_dense_target_in_graphs():
    head = "one_key_head_eagle"
    case, result = ran(ONE_KEY_HEAD, head, speculative={"method": "eagle"}, **IN_GRAPHS)
    assert_greedy_tokens_of_reference(case, result)
    drafter = speculation.DraftHead(model_directory(head), model_directory(ONE_KEY_HEAD))
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.judge(drafter.rows, result.proposals, near_tie)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert report.checked == 3 * len(result.proposals) > 60
    assert result.draft_replays


def test_a_model_that_drafts_for_itself_is_always_accepted_and_hits_prefixes():
    """With asynchronous scheduling, where proposals are not told."""
    case, result = ran(
        ONE_KEY_HEAD, ONE_KEY_HEAD, record_drafts=False, repeats=2, max_tokens=21, **IN_GRAPHS
    )
    assert_greedy_tokens_of_reference(case, result)
    assert max(result.cached_tokens) == 256, "a block of 128 keys on each of two ranks"
    assert result.mean_acceptance_length == case.num_speculative_tokens + 1
