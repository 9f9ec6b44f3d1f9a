# SPDX-License-Identifier: Apache-2.0
"""Method dflash over one KV group; over several it stands in ``test_drafting_reference``."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionBackend

from tests.support import engine, hosts, speculation
from tests.support.marks import needs_float32
from tests.support.pairs import assert_greedy, kv_groups, prompts_of, scenario
from tests.support.tiny_models import model_directory

refuse_windows = hosts.module("drafting.mask_tokens").refuse_windows


@needs_float32
def test_one_group_chunks_prefix_hits_and_the_maximum_length():
    """Every token whose block fits is the head's own; past the maximum nothing is asked of it.

    Proposals are replayed from graphs where all requests verify drafts, of 1 and 3 requests for 2.
    """
    target, draft = model_directory("gpt_oss"), model_directory("gpt_oss_dflash")
    max_model_len, k = 288, 3
    case = scenario(
        "gpt_oss",
        "gpt_oss_dflash",
        prompts=prompts_of("gpt_oss", [265, 268, 5]),
        max_tokens=30,
        num_speculative_tokens=k,
        speculative={"method": "dflash"},
        engine={
            "max_model_len": max_model_len,
            "max_num_batched_tokens": 64,
            "disable_hybrid_kv_cache_manager": True,
        },
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(k + 1, 3 * (k + 1)),
        repeats=2,
    )
    result = engine.run(case)
    assert result.draft_replays > 5
    assert kv_groups(result, "draft") == kv_groups(result, "target") == {0}
    assert max(result.cached_tokens) >= 128
    first = result.tokens[: len(case.prompts)]
    assert result.tokens == first * 2
    for prompt, tokens in zip(case.prompts, first, strict=True):
        assert len(tokens) == min(case.max_tokens, max_model_len - len(prompt))
        assert_greedy(case.model, [prompt], [tokens], len(tokens))
    head = speculation.load_head(draft, target)
    asked = 0
    for prompt, tokens in zip(case.prompts, first, strict=True):
        whole = (*prompt, *tokens)
        proposals = [
            p
            for p in result.proposals
            if p.context == list(whole[: len(p.context)]) and len(p.context) + k <= max_model_len
        ]
        asked += len(proposals)
        with torch.inference_mode():
            rows = head.blocks(
                head.known(speculation.hidden_states_of(target, whole)),
                torch.tensor([[p.context[-1] for p in proposals]]),
                torch.tensor([[len(p.context) - 1 for p in proposals]]),
                k,
            )[0]
        drafted = torch.tensor([p.tokens for p in proposals])
        lead = rows.max(-1).values - rows.gather(-1, drafted[..., None])[..., 0]
        assert lead.max() < speculation.TIE
    assert asked > 20


@pytest.mark.host("0.23")
def test_a_window_that_no_operator_is_given_is_refused():
    """vllm-ascend's operator call without a causal mask has no window."""
    common = {"block_size": 128, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    short = {"short": SlidingWindowSpec(sliding_window=8, **common)}
    layer = SimpleNamespace(get_attn_backend=lambda: AscendAttentionBackend)
    layers = dict.fromkeys(("short", "whole", "kept"), layer)
    refuse_windows({"whole": FullAttentionSpec(**common), **short}, ["short"], layers)
    with pytest.raises(NotImplementedError, match="draft's layer short has a cache of Sliding"):
        refuse_windows(short, ["whole"], layers)
    with pytest.raises(NotImplementedError, match="without a window"):
        refuse_windows({"kept": FullAttentionSpec(sliding_window=8, **common)}, (), layers)
