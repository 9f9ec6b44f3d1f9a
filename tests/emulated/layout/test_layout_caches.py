# SPDX-License-Identifier: Apache-2.0
"""Caches from the plan in engines: equal to stock's where stock serves, and never aliased."""

import functools

import pytest

from tests.emulated import probes
from tests.support import programs
from tests.support.pairs import scenario

pytestmark = pytest.mark.host("0.23")


@functools.cache
def probe(target, draft, block_size=128):
    """What an engine of these models holds; one engine for all tests of a pair."""
    case = scenario(target, draft, prompts=[])
    engine = {"block_size": block_size, "kv_cache_memory_bytes": 24 << 20}
    if block_size != 128:  # vllm-ascend sets it to 128 otherwise
        engine |= {"enable_prefix_caching": False, "enable_chunked_prefill": False}
    return programs.answer_of(probes.caches, {**case.engine_arguments(), **engine})


STOCK_SERVES = [
    ("llama_target", None),
    ("gemma3", None),
    ("llama_target", "llama_draft"),
    ("deepseek_v2_target", "llama_draft"),
    ("deepseek_v2_target", "deepseek_v2_target"),
]
FOLDED = [
    ("deepseek_v2_target", "gemma3_window_draft"),
    ("gemma3", "llama_draft"),
    ("gpt_oss", "gemma3_window_draft"),
]


@pytest.mark.parametrize(("target", "draft"), STOCK_SERVES)
def test_caches_are_those_of_vllm_ascend_where_it_serves(target, draft):
    """Shapes, dtypes, strides and bytes of every tensor, made by vllm-ascend's own methods."""
    result = probe(target, draft)
    assert result["planned"]
    assert result["caches"] == result["stock_caches"]


@pytest.mark.parametrize(("target", "draft"), STOCK_SERVES + FOLDED)
def test_no_block_is_part_of_another_block(target, draft):
    """One block of one layer is filled and looked for in all others, of every layer."""
    result = probe(target, draft)
    assert result["planned"]
    assert result["aliases"] == []


@pytest.mark.parametrize(("target", "draft"), STOCK_SERVES + FOLDED)
def test_the_plan_takes_what_the_engine_core_counted(target, draft):
    result = probe(target, draft)
    assert result["counted_bytes"] - 4096 <= result["plan_bytes"] <= result["counted_bytes"] + 4096
    assert result["counted_bytes"] <= 24 << 20


def test_window_draft_of_an_mla_target_has_a_group_of_its_own():
    """vLLM alone refuses this pair before it groups."""
    groups = probe("deepseek_v2_target", "gemma3_window_draft")["groups"]
    assert [len(group) for group in groups] == [2, 2]
    assert all(name.startswith("draft_model.") for name in groups[1])


def test_full_attention_of_the_draft_folds_into_the_targets_group():
    groups = probe("gemma3", "llama_draft")["groups"]
    assert sorted(map(len, groups)) == [2, 4]
    folded = max(groups, key=len)
    assert not folded[0].startswith("draft_model.")
    assert sum(name.startswith("draft_model.") for name in folded) == 2


# Blocks that held something else: a draft never reads what was left there as a number.


@pytest.mark.parametrize("draft", ["gemma3_draft", "deepseek_v2_draft"])
def test_keys_that_were_never_written_are_not_what_states_left_there(draft):
    """Beside a target with states: a draft with dense layers and windows, and one with MLA."""
    case = scenario("lfm2", draft, num_speculative_tokens=3, speculative={"method": "draft_model"})
    request = {
        "engine": {**case.engine_arguments(), "async_scheduling": False},
        "prompts": case.prompts[:6],
        "max_tokens": 24,
    }
    result = programs.answer_of(probes.stale_blocks, request)
    assert result["clean"]["accepted"] < result["clean"]["drafted"], "no row is rejected"
    assert result["stale"] == result["clean"]
