# SPDX-License-Identifier: Apache-2.0
"""Engines on planned caches: tokens, every draft token, prefix hits, preemption, admission."""

import re
from dataclasses import replace

import pytest

from tests.support import engine, reference
from tests.support.models import unequal_heads
from tests.support.pairs import (
    TIES,
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    prompts_of,
    run_greedy,
    run_judged,
    scenario,
)
from tests.support.prompts import text_prompts as texts
from tests.support.tiny_models import model_directory

MLA_WITH_WINDOW = ("deepseek_v2_target", "gemma3_window_draft")
WINDOW_WITH_DENSE = ("gemma3", "llama_draft")
BLOCK = 128
MAX_MODEL_LEN = 512
# 4 blocks of all tokens; 5 of the window, because a step may add 512 tokens and the window need
# not start with a block; 1 that vLLM keeps for itself.
BLOCKS_OF_ONE_REQUEST = 10


def groups_of(result):
    """Role -> the KV groups of its layers."""
    found = {}
    for row in result.layers:
        found.setdefault(row["role"], set()).add(row["kv_group"])
    return found


@pytest.mark.host("0.23")
@pytest.mark.parametrize("tensor_parallel_size", [1, 2], ids=["tp1", "tp2"])
def test_mla_target_with_window_draft(tensor_parallel_size):
    """vLLM alone asserts that a model with MLA has no sliding window."""
    model = model_directory(MLA_WITH_WINDOW[0])
    ids = [reference.token_ids(model, text) for text in texts()]
    # Those of which the draft knows something.
    decided = [ids[number] for number in (1, 3, 4, 5, 6, 8, 10, 12)]
    ranks = {"tensor_parallel_size": tensor_parallel_size}
    case = scenario(*MLA_WITH_WINDOW, prompts=decided, engine=ranks)
    result = run_judged(case)
    assert groups_of(result) == {"target": {0}, "draft": {1}}
    assert result.mean_acceptance_length > 1.8
    # Only the first rank says what is planned.
    assert result.log.count("KV cache plan: 2 groups") == 1


@pytest.mark.core(cases=["pair0-*"])
@pytest.mark.host("0.23")
@pytest.mark.parametrize(
    ("pair", "caching"),
    [
        (MLA_WITH_WINDOW, True),
        (MLA_WITH_WINDOW, False),
        (WINDOW_WITH_DENSE, True),
    ],
)
def test_prefix_hits_with_a_draft_are_those_without(pair, caching):
    target, draft = pair
    options = {
        "prompts": prompts_of(target, [300, 280, 140]),
        "engine": {"enable_prefix_caching": caching},
        "max_tokens": 8,
        "repeats": 2,
    }
    result = run_judged(scenario(target, draft, **options))
    alone = engine.run(scenario(target, **options))
    hits = 300 // BLOCK * BLOCK if caching else 0
    assert result.cached_tokens == alone.cached_tokens
    assert max(result.cached_tokens) == hits


@pytest.mark.host("0.23")
@pytest.mark.parametrize(
    ("pair", "block_size"),
    [
        (WINDOW_WITH_DENSE, 2 * BLOCK),
        (("gemma3", "gemma3_window_draft"), 4 * BLOCK),
        (("llama_target", "llama_draft"), 2 * BLOCK),
    ],
)
def test_large_blocks(pair, block_size):
    """One group and several, with blocks that the block tables split in two.

    vllm-ascend sets blocks to 128 where there is prefix caching or chunked prefill. Without
    chunked prefill its MLA backend fails at the first verify step, whatever the block size.
    """
    options = {"enable_prefix_caching": False, "enable_chunked_prefill": False}
    case = scenario(
        *pair,
        prompts=prompts_of(pair[0], [300, 200, 505]),
        engine={
            "block_size": block_size,
            "max_model_len": 1024,
            "max_num_batched_tokens": 1024,
            **options,
        },
    )
    result = run_judged(case)
    assert result.mean_acceptance_length > 1.5
    found = re.search(rf"blocks of (\d+ and )?{block_size} tokens", result.log)
    assert found or pair[0] == "llama_target"


A_BLOCK_A_PAGE = {"layout": {"shared_pages": False}}
"""As KV connectors have it; ``test_shared_pages.py`` has the rest."""


@pytest.mark.smoke(cases=["*-gemma3_window_draft"])
@pytest.mark.host("0.23")
@pytest.mark.parametrize("pair", [MLA_WITH_WINDOW, WINDOW_WITH_DENSE], ids="-".join)
def test_preemption_changes_no_token(pair):
    case = scenario(
        *pair,
        prompts=prompts_of(pair[0], [250, 248, 246, 245, 244, 243]),
        engine={"num_gpu_blocks_override": 16, "enable_prefix_caching": True},
        mkv_ascend=A_BLOCK_A_PAGE,
    )
    result = run_judged(case)
    assert result.num_gpu_blocks == 16
    assert result.preemptions > 0


def full_length(num_blocks):
    target = MLA_WITH_WINDOW[0]
    return scenario(
        *MLA_WITH_WINDOW,
        prompts=prompts_of(target, [MAX_MODEL_LEN - 32]),
        engine={"num_gpu_blocks_override": num_blocks, "max_model_len": MAX_MODEL_LEN},
        mkv_ascend=A_BLOCK_A_PAGE,
    )


@pytest.mark.host("0.23")
def test_memory_for_one_request_of_full_length_is_enough():
    case = full_length(BLOCKS_OF_ONE_REQUEST)
    result = run_greedy(case)
    # Behind the longest context a proposal has tokens that no sequence may have.
    cut = [
        replace(one, tokens=one.tokens[: MAX_MODEL_LEN - len(one.context) + 1])
        for one in result.proposals
    ]
    report = reference.check_drafts(case.draft, cut)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert result.num_gpu_blocks == BLOCKS_OF_ONE_REQUEST
    assert f"KV cache plan: 2 groups, {BLOCKS_OF_ONE_REQUEST} blocks of " in result.log
    assert re.search(r"One request of 512 tokens takes 9 blocks .*: 1\.00 at once", result.log)


@pytest.mark.host("0.23")
def test_one_block_less_is_refused_with_numbers():
    """vLLM's own check has no block for the null block: its scheduler would wait for ever."""
    with pytest.raises(engine.EngineFailedError) as failure:
        engine.run(full_length(BLOCKS_OF_ONE_REQUEST - 1))
    log = str(failure.value)
    assert "one request of 512 tokens needs 10 blocks" in log
    assert "there are 9 (" in log
    assert "enough for 384 tokens" in log
    assert "raise num_gpu_blocks_override to 10 or more" in log


@pytest.mark.core
def test_the_drafts_cache_may_have_a_dtype_of_its_own():
    """Rows of 2 bytes beside rows of 4; the draft's tokens are its own, except for rounding.

    Its two layers run on two backends.
    """
    first = {r"draft_model\.model\.layers\.0\..*": "flash_attention_3"}
    case = scenario(
        "llama_target",
        "llama_draft",
        mkv_ascend={"kv_cache": {"draft_dtype": "bfloat16"}, "attention": {"layers": first}},
    )
    result = run_greedy(case)
    near_tie, share = TIES["bfloat16"]
    report = reference.check_drafts(case.draft, result.proposals, near_tie)
    assert report.checked > 0
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert len(report.near_ties) <= share * report.checked
    assert result.mean_acceptance_length > 1.8
    item = {"float32": 4, "bfloat16": 2}[engine.compared_dtype()]
    row = 2 * 2 * 64 * BLOCK  # Keys and values of two heads, for each of the two layers.
    assert result.num_gpu_blocks == (64 << 20) // (2 * row * item + 2 * row * 2)


@pytest.mark.host("0.23")
def test_keys_of_192_and_values_of_128(tmp_path):
    """vllm-ascend divides a buffer by a ratio of floats, and views its output with 192 elements."""
    llama = model_directory("llama_target")
    unequal_heads.write_checkpoint(llama, tmp_path)
    case = scenario("llama_target", "llama_draft")
    result = engine.run(replace(case, model=str(tmp_path)))
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.mean_acceptance_length > 1.8
    item = {"float32": 4, "bfloat16": 2}[engine.compared_dtype()]
    rows = 2 * (192 + 128) + 2 * (64 + 64)  # Two heads; target and draft.
    assert result.num_gpu_blocks == (64 << 20) // (2 * rows * BLOCK * item)
